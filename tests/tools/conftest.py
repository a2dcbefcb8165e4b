"""A server for the tests of kestrel-cli, and the tools in this process."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kestrel.disk.files import Disk
from kestrel.escaping import unescape_name
from kestrel.tools import qdump, qpack
from kestrel.tools.cli.command import main
from kestrel.tools.convert import command as convert
from kestrel.tools.tool_runner import Clock
from tests.client.scripted import scripted, talk
from tests.journal.restarts import NOW_MS
from tests.server.running import Processes, Server

Convert = Callable[..., tuple[int, str, str]]
Pack = Callable[..., tuple[int, str, str]]
Cli = Callable[..., tuple[int, bytes, str]]
Dump = Callable[..., tuple[int, bytes, str]]

CONFIG = """
queuePath = "queues"
maxOpenTransactions = 100
[[queues]]
name = "small"
maxItems = 3
[[queues]]
name = "picky"
maxItemSize = 1
[[aliases]]
name = "orders"
destinationQueues = ["work", "small"]
"""


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Processes(tmp_path_factory.mktemp("cli")) as processes:
        yield processes.serve(CONFIG)


@pytest.fixture
def server(one_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return an empty server, which kestrel-cli asks by default."""
    with one_server.connect() as client:
        figures = "".join(f"{name}\n" for name in client.stats())
        for queue in re.findall(r"^queue_(.+)_open_transactions$", figures, re.MULTILINE):
            client.ask(b"delete %b\r\n" % unescape_name(queue.encode()), b"DELETED\r\n")
    monkeypatch.setenv("KESTREL_SERVERS", f"127.0.0.1:{one_server.port}")
    return one_server


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Run kestrel-cli, and return its exit status, output and error output."""

    def run_here(*arguments: object, stdin: bytes | None = b"", clock: Clock | None = None) -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = main([os.fsdecode(each) if isinstance(each, bytes) else str(each) for each in arguments], clock)
        except SystemExit as end:
            assert isinstance(end.code, int)
            status = end.code
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return run_here


@pytest.fixture
def convert_it(capsys: pytest.CaptureFixture[str]) -> Convert:
    """Run kestrel-convert, and return its exit status, output and error output."""

    def run_here(*arguments: object, disk: Disk | None = None, now_ms: int = NOW_MS) -> tuple[int, str, str]:
        status = convert.main([str(each) for each in arguments], disk, lambda: now_ms)
        return status, *capsys.readouterr()

    return run_here


@pytest.fixture
def dump(capfdbinary: pytest.CaptureFixture[bytes]) -> Dump:
    """Run kestrel-qdump, and return its exit status, output and error output."""

    def run_here(*arguments: object, disk: Disk | None = None) -> tuple[int, bytes, str]:
        status = qdump.main([str(each) for each in arguments], disk)
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return run_here


@pytest.fixture
def pack(capsys: pytest.CaptureFixture[str]) -> Pack:
    """Run kestrel-qpack, and return its exit status, output and error output."""

    def run_here(*arguments: object, disk: Disk | None = None) -> tuple[int, str, str]:
        status = qpack.main([str(each) for each in arguments], disk)
        return status, *capsys.readouterr()

    return run_here


def error_of(run: Callable[..., tuple[int, object, str]], status: int, *arguments: object, **options: Any) -> str:
    """Run a tool, which must end with this status and without output. Return its error output."""
    ended, out, said = run(*arguments, **options)
    assert (ended, bool(out)) == (status, False), said
    return said


def with_scripted(
    cli: Cli, exchanges: Sequence[tuple[bytes, bytes]], *arguments: object, **options: Any
) -> tuple[int, bytes, str]:
    """Run kestrel-cli with a server of these requests and replies. Its error output has SERVER for the address.

    The arguments also have SERVER for the address, if it is not that of ``--server``.
    """
    with scripted(talk(*exchanges)) as server:
        if "SERVER" not in arguments:
            arguments = ("--server", "SERVER", *arguments)
        given = [server.address if each == "SERVER" else each for each in arguments]
        status, out, said = cli(*given, **options)
    return status, out, said.replace(server.address, "SERVER")


def put(server: Server, *items: bytes) -> None:
    """Put items with another client."""
    with server.connect() as client:
        client.put(b"work", *items)


def take_all(server: Server, queue: bytes) -> list[bytes]:
    """Take all items of a queue with another client."""
    with server.connect() as client:
        return list(iter(lambda: client.get(queue), None))


def pauses(paused: list[float], ends_after: int = 100) -> Callable[[float], None]:
    """Return a replacement for a pause, which records it and raises KeyboardInterrupt at the last one."""

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == ends_after:
            raise KeyboardInterrupt

    return pause


class RefusingDisk(Disk):
    """A disk that refuses to create folders whose path contains `part`."""

    def __init__(self, number: int, part: bytes) -> None:
        super().__init__()
        self._number = number
        self._part = part

    def make_folder(self, path: bytes) -> None:
        if self._part in path:
            raise OSError(self._number, os.strerror(self._number), path)
        super().make_folder(path)
