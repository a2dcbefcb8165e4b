"""A real file system without free inodes, or without bytes and inodes: a server starts there and is drained."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from tests.server.running import PATIENCE_S, Client, Processes, eventually

ITEMS = [b"%03d" % number * 300 for number in range(100)]
CONFIG = """
[[queues]]
name = "rotating"
defaultJournalSize = "20KiB"
maxMemorySize = "10KiB"
"""
QUEUES = (b"work", b"rotating", b"parent", b"parent+child")


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "medium"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=60", "none", folder]
    subprocess.run(mount, check=True, timeout=PATIENCE_S)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True, timeout=PATIENCE_S)


def fill(folder: Path, *, bytes_too: bool) -> None:
    """Use up all inodes of the file system, and all bytes where that is asked for."""
    folder.mkdir()
    if bytes_too:
        with suppress(OSError), (folder / "large").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    with suppress(OSError):
        for number in count():
            (folder / str(number)).touch()
    assert os.statvfs(folder).f_favail == 0


@pytest.mark.needs("mount")
@pytest.mark.parametrize("bytes_too", [False, True], ids=["inodes", "bytes and inodes"])
@pytest.mark.parametrize("storage", ["journal", "scroll"])
def test_a_server_on_a_full_medium_is_drained_and_takes_puts_again(
    processes: Processes, medium: Path, storage: str, bytes_too: bool
) -> None:
    described = f"{storage}:{medium}/queues?reserve=64KiB"
    server = processes.serve(CONFIG, "--storage", described)
    with server.connect() as client:
        for queue in QUEUES:
            client.put(queue, *ITEMS)
        assert client.get(b"work/open") == ITEMS[0]
        server.kill()
    fill(medium / "fillers", bytes_too=bytes_too)
    server = processes.serve(CONFIG, "--storage", described)
    with server.connect() as client:
        for queue in QUEUES[:-1]:
            assert client.get(queue + b"/peek") == ITEMS[0]
            assert client.get(queue + b"/open") == ITEMS[0]
            assert client.get(queue + b"/abort") is None
            assert client.get(queue + b"/open") == ITEMS[0]
            assert client.get(queue + b"/close/open") == ITEMS[1]
            assert client.get(queue + b"/close") is None
        assert client.get(b"unknown") is None
        delete(client, b"rotating")
        assert drained(client, b"work") == ITEMS[2:]
        client.ask(b"flush parent\r\n", b"END\r\n")
        for queue in QUEUES:
            delete(client, queue)
    for filler in (medium / "fillers").iterdir():
        filler.unlink()
    with server.connect() as client:
        eventually(lambda: takes_puts(client), "puts are taken again")
        client.put(b"work", *ITEMS)
        assert drained(client, b"work") == ITEMS
    server.stop()


def delete(client: Client, queue: bytes) -> None:
    client.ask(b"delete %b\r\n" % queue, b"DELETED\r\n")


def drained(client: Client, queue: bytes) -> list[bytes]:
    return [item for item in iter(lambda: client.get(queue), None) if item is not None]


def takes_puts(client: Client) -> bool:
    client.send(b"set probe 0 0 1\r\na\r\n")
    return client.line() == b"STORED\r\n"
