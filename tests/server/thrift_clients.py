"""A blocking thrift client that thriftpy2 makes from kestrel.thrift.

As a program it takes items with an auto-abort, prints their number, and holds them until it is killed:

    python -m tests.server.thrift_clients PORT QUEUE ITEMS AUTO_ABORT_MS
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import thriftpy2
from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.rpc import make_client
from thriftpy2.transport import TFramedTransportFactory

from tests.server.running import PATIENCE_S, ROOT

IDL: Final = ROOT / "kestrel" / "protocols" / "kestrel.thrift"


class Item(NamedTuple):
    """An item of a get."""

    data: bytes
    id: int


class Thrift:
    """A blocking connection to this machine. `raw` is the library's own client."""

    def __init__(self, port: int) -> None:
        self.raw: Any = make_client(
            thriftpy2.load(str(IDL), module_name="read_by_thriftpy2_thrift").Kestrel,
            "127.0.0.1",
            port,
            proto_factory=TBinaryProtocolFactory(),
            trans_factory=TFramedTransportFactory(),
            timeout=1000 * PATIENCE_S,
        )

    def put(self, queue: str, items: Sequence[bytes]) -> int:
        """Return the number of stored items."""
        count: int = self.raw.put(queue, list(items), 0)
        return count

    def get(self, queue: str, max_items: int, timeout_msec: int = 0, auto_abort_msec: int = 0) -> list[Item]:
        """Return the taken items."""
        return [Item(each.data, each.id) for each in self.raw.get(queue, max_items, timeout_msec, auto_abort_msec)]

    def confirm(self, queue: str, ids: Collection[int]) -> int:
        """Return how many of the reads were open."""
        count: int = self.raw.confirm(queue, set(ids))
        return count

    def abort(self, queue: str, ids: Collection[int]) -> int:
        """Return how many of the reads were open."""
        count: int = self.raw.abort(queue, set(ids))
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.raw.close()


def hold(port: int, queue: str, items: int, auto_abort_ms: int) -> None:
    """Take items, print their number, and hold them until this process ends."""
    with Thrift(port) as client:
        print(len(client.get(queue, items, 0, auto_abort_ms)), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    hold(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
