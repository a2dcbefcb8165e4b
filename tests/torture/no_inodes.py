"""A server that starts on a file system without free inodes still delivers and deletes. Mounting it requires root."""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from tests.child import PATIENCE_S
from tests.server.running import Client, Processes
from tests.torture.check_report import CheckReport
from tests.torture.kill_restart import CONNECTION_ERRORS

CONFIG: Final = """queuePath = "queues"

[default]
maxMemorySize = "4KiB"
defaultJournalSize = "4KiB"
"""
OPTIONS: Final = "size=16m,nr_inodes=80"
QUEUES: Final = (b"one", b"two", b"news", b"news+a")
ITEMS: Final = 60


@contextmanager
def small_file_system(folder: Path) -> Iterator[bool]:
    """Mount a small file system on a folder. Yield False if this process may not mount."""
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", OPTIONS, "none", str(folder))
    try:
        is_mounted = subprocess.run(mount, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(("umount", "--lazy", str(folder)), timeout=PATIENCE_S, check=True)


def use_up_inodes(folder: Path) -> list[Path]:
    """Create empty files until no inode is free. Return their paths."""
    fillers: list[Path] = []
    for number in count():
        path = folder / f"filler-{number}"
        try:
            path.touch(exist_ok=False)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return fillers
        fillers.append(path)
    raise AssertionError


def fill(client: Client) -> dict[bytes, set[bytes]]:
    """Put items to all queues. Return the items of each queue."""
    pending: dict[bytes, set[bytes]] = {queue: set() for queue in QUEUES}
    for queue in QUEUES:
        client.get(queue + b"/peek")
    for number in range(ITEMS):
        for queue in (b"one", b"two", b"news"):
            data = b"%b %03d " % (queue, number) + b"x" * 200
            client.put(queue, data)
            for each in (queue, queue + b"+a"):
                if each in pending:
                    pending[each].add(data)
    return pending


def torture(folder: Path, storage: str, seed: int, report: CheckReport) -> None:
    """Kill a server, use up all inodes, restart it, and check that clients can free some."""
    medium = folder / "medium"
    with small_file_system(medium) as is_mounted, Processes(folder) as processes:
        if not is_mounted:
            print(f"  skipped: {storage}: this process may not mount a file system")
            return
        processes.arguments = ("--storage", f"{storage}:{medium}/queues?reserve=64KiB")
        server = processes.serve(CONFIG)
        with server.connect() as client:
            pending = fill(client)
            client.get(b"one/open")
            server.kill()
        fillers = use_up_inodes(medium)
        problems: list[str] = []
        try:
            server = processes.serve(CONFIG)
        except AssertionError as error:
            report.check(False, f"{storage}: the server starts without inodes: {str(error)[-300:]}")
            return
        report.check(True, f"{storage}: the server starts without inodes")
        for queue in QUEUES:
            problems += _use(server.connect(), queue, pending[queue])
        what = f"{storage}: clients peek, get, open, close and delete: {len(problems)} failures"
        report.check(not problems, what, problems)
        for filler in fillers:
            filler.unlink()
        with server.connect() as client:
            replies = []
            for _ in range(200):  # the server tries to restore its reserve only now and then
                client.send(b"set one 0 0 5\r\nhello\r\n")
                replies.append(client.line())
                if replies[-1] == b"STORED\r\n":
                    break
                time.sleep(0.1)
            report.check(replies[-1] == b"STORED\r\n", f"{storage}: puts work again with free inodes ({replies[-1]!r})")
        server.kill()


def _use(client: Client, queue: bytes, expected: set[bytes]) -> list[str]:
    """Take all items of a queue in different ways, and delete it. Return the problems."""
    name = queue.decode()
    try:
        with client:
            if client.get(queue + b"/peek") is None:
                return [f"{name}: no item to peek at"]
            found = {client.get(queue + b"/open"), client.get(queue + b"/close/open")}
            client.get(queue + b"/abort")
            found |= set(iter(lambda: client.get(queue), None))
            client.send(b"delete %b\r\n" % queue)
            reply = client.line()
            if reply != b"DELETED\r\n":
                return [f"{name}: delete was answered {reply!r}"]
            lost = expected - found
            return [f"{name}: {len(lost)} of {len(expected)} items are lost"] if lost else []
    except CONNECTION_ERRORS as error:
        return [f"{name}: {type(error).__name__}: {str(error)[:200]}"]
