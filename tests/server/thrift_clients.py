"""Thrift clients of libraries that people have, made from kestrel.thrift as a user makes them, behind one face.

Run as a program it takes items with an auto-abort, says how many, and holds them until it is killed:

    python -m tests.server.thrift_clients LIBRARY PORT QUEUE ITEMS AUTO_ABORT_MS
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from tests.server.running import PATIENCE_S, ROOT

IDL: Final = ROOT / "kestrel" / "protocols" / "kestrel.thrift"

THRIFTPY2: Final = "thriftpy2"
"""The library that reads the file as it runs. Apache's is the folder of the code that its compiler generated."""


class Item(NamedTuple):
    """An item of a get."""

    data: bytes
    id: int


class Thrift:
    """A blocking connection to this machine; `raw` is the library's own client, for all but items and ids.

    `library` is `THRIFTPY2` or a folder that `generate` filled.
    """

    def __init__(self, library: str, port: int) -> None:
        self.raw: Any
        self._close: Any
        if library == THRIFTPY2:
            self.raw, self._close = _thriftpy2(port)
        else:
            self.raw, self._close = _apache(library, port)

    def put(self, queue: str, items: Sequence[bytes], expiration_msec: int = 0) -> int:
        """How many went in."""
        count: int = self.raw.put(queue, list(items), expiration_msec)
        return count

    def get(self, queue: str, max_items: int, timeout_msec: int = 0, auto_abort_msec: int = 0) -> list[Item]:
        """What was taken."""
        return [Item(each.data, each.id) for each in self.raw.get(queue, max_items, timeout_msec, auto_abort_msec)]

    def confirm(self, queue: str, ids: Collection[int]) -> int:
        """How many were open."""
        count: int = self.raw.confirm(queue, set(ids))
        return count

    def abort(self, queue: str, ids: Collection[int]) -> int:
        """How many were open."""
        count: int = self.raw.abort(queue, set(ids))
        return count

    def close(self) -> None:
        """Hang up."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def generate(folder: Path) -> str:
    """Let Apache's compiler make its client in that folder: the library's name for `Thrift`."""
    subprocess.run(["thrift", "--gen", "py", "-out", str(folder), str(IDL)], check=True, timeout=PATIENCE_S)
    return str(folder)


def _thriftpy2(port: int) -> tuple[Any, Any]:
    thriftpy2 = importlib.import_module("thriftpy2")
    rpc = importlib.import_module("thriftpy2.rpc")
    protocol = importlib.import_module("thriftpy2.protocol")
    transport = importlib.import_module("thriftpy2.transport")
    service = thriftpy2.load(str(IDL), module_name="read_by_thriftpy2_thrift").Kestrel
    client = rpc.make_client(
        service,
        "127.0.0.1",
        port,
        proto_factory=protocol.TBinaryProtocolFactory(),
        trans_factory=transport.TFramedTransportFactory(),
        timeout=1000 * PATIENCE_S,
    )
    return client, client.close


def _apache(folder: str, port: int) -> tuple[Any, Any]:
    if folder not in sys.path:
        sys.path.insert(0, folder)
    service = importlib.import_module("kestrel_thrift.Kestrel")
    sockets = importlib.import_module("thrift.transport.TSocket")
    transports = importlib.import_module("thrift.transport.TTransport")
    protocols = importlib.import_module("thrift.protocol.TBinaryProtocol")
    socket = sockets.TSocket("127.0.0.1", port)
    socket.setTimeout(1000 * PATIENCE_S)
    transport = transports.TFramedTransport(socket)
    transport.open()
    return service.Client(protocols.TBinaryProtocol(transport)), transport.close


def hold(library: str, port: int, queue: str, items: int, auto_abort_ms: int) -> None:
    """Take items, print how many, and hold them until this process ends."""
    with Thrift(library, port) as client:
        print(len(client.get(queue, items, 0, auto_abort_ms)), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    hold(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
