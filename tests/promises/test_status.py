"""The server's status: what each level refuses, how it changes, and where it is stored."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import MemoryClient, MemoryServer, MemoryStatusFile
from tests.memcache_text import END, STORED, items, put, set_, stat, value

STATUSES = ["Up", "WriteAvoid", "ReadOnly", "Quiescent"]
"""Names as Kestrel writes them, from the loosest to the strictest."""

CHANGES = {
    "set": set_(b"work", b"three"),
    "set of a new queue": set_(b"new", b"one"),
    "delete": b"delete work\r\n",
    "flush": b"flush work\r\n",
    "flush_all": b"flush_all\r\n",
    "flush_expired": b"flush_expired fading\r\n",
}

READS = {
    "get": b"get work\r\n",
    "get of a new queue": b"get new\r\n",
    "get that waits": b"get work/t=1000\r\n",
    "reliable get": b"get work/open\r\n",
    "peek": b"get work/peek\r\n",
    "monitor": b"monitor work 1 1\r\n",
}


def serving(settings: str = "") -> MemoryServer:
    """Return a server with two items in `work`, and an expired one in `fading`."""
    server = MemoryServer(config=loads("maxOpenTransactions = 100\n" + settings))
    request = set_(b"work", b"one") + set_(b"work", b"two") + set_(b"fading", b"old", expiry=1)
    assert server.connect().ask(request) == STORED * 3
    server.advance(2)
    return server


def change(server: MemoryServer, status: str) -> None:
    assert server.connect().ask(b"status %b\r\n" % status.encode()) == END


def status_of(server: MemoryServer) -> bytes:
    return server.connect().ask(b"status\r\n")


def is_refused(server: MemoryServer, request: bytes) -> bool:
    """Return True if a new client gets only a SERVER_ERROR and is disconnected."""
    client = server.connect()
    reply = client.ask(request)
    refused = reply.startswith(b"SERVER_ERROR ")
    assert reply.count(b"\r\n") == 1 or not refused
    assert client.is_closed == refused
    return refused


def takes_puts(server: MemoryServer) -> bool:
    return not is_refused(server, set_(b"probe", b"data"))


def takes_gets(server: MemoryServer) -> bool:
    return not is_refused(server, b"get probe\r\n")


# The levels.


@pytest.mark.parametrize("remembered", [None, b"", b"nonsense", b"Down", b"\xff\xfe\x00", b"ReadOnly" * 100])
def test_server_without_stored_status_has_default_status(remembered: bytes | None) -> None:
    file = MemoryStatusFile()
    file.data = remembered
    for default in STATUSES:
        server = MemoryServer(config=loads(f'defaultStatus = "{default}"'), status_file=file)
        assert status_of(server) == default.upper().encode() + b"\r\n"
        assert takes_puts(server) is (default in ("Up", "WriteAvoid"))
        assert takes_gets(server) is (default != "Quiescent")
    assert status_of(MemoryServer(config=Config(), status_file=file)) == b"UP\r\n"


def test_server_with_unreadable_status_file_has_default_status() -> None:
    file = MemoryStatusFile()
    file.data = b"Up"
    file.error = OSError(errno.EIO, os.strerror(errno.EIO))
    server = MemoryServer(config=loads('defaultStatus = "ReadOnly"'), status_file=file)
    assert status_of(server) == b"READONLY\r\n"
    assert not takes_puts(server)


@pytest.mark.parametrize("status", STATUSES)
def test_status_answers_in_capitals_and_change_answers_end(status: str) -> None:
    for name in (status, status.lower(), status.upper(), status.swapcase()):
        server = MemoryServer(config=loads('defaultStatus = "Quiescent"' if status == "Up" else ""))
        client = server.connect()
        assert client.ask(b"status %b\r\nstatus\r\n" % name.encode()) == END + status.upper().encode() + b"\r\n"
        assert not client.is_closed


@pytest.mark.parametrize(
    "name", [b"down", b"Down", b"DOWN", b"sideways", b"read_only", b"Read-Only", b"read only", b"up!", b"\xff"]
)
def test_unknown_status_and_down_are_client_errors(name: bytes) -> None:
    server = MemoryServer(config=loads('defaultStatus = "WriteAvoid"'))
    client = server.connect()
    reply = client.ask(b"status " + name + b"\r\nversion\r\n")
    assert reply.startswith(b"CLIENT_ERROR ")
    assert reply.count(b"\r\n") == 1
    assert client.is_closed
    assert status_of(server) == b"WRITEAVOID\r\n"


# Requests that each level refuses.


def test_write_avoid_refuses_nothing() -> None:
    for request in [*CHANGES.values(), *READS.values(), b"flush_all_expired\r\n"]:
        server = serving()
        change(server, "WriteAvoid")
        assert not is_refused(server, request)
    client = server.connect()
    assert client.ask(set_(b"other", b"data") + b"get other/open\r\nconfirm other 1\r\n") == (
        STORED + value(b"other/open", b"data") + END
    )


@pytest.mark.parametrize("status", ["ReadOnly", "Quiescent"])
@pytest.mark.parametrize("request_", CHANGES.values(), ids=CHANGES)
def test_read_only_refuses_changes_of_queues(request_: bytes, status: str) -> None:
    server = serving()
    change(server, status)
    assert is_refused(server, request_ + b"version\r\n")
    client = server.connect()
    assert stat(client, b"work", "items") == "2"
    assert (stat(client, b"fading", "items"), stat(client, b"fading", "expired_items")) == ("1", "0")
    assert b"queue_new_" not in client.ask(b"stats\r\n")
    change(server, "Up")
    assert items(client, b"work") == [b"one", b"two"]


def test_read_only_allows_gets_peeks_and_monitors() -> None:
    server = serving()
    put(server.connect(), b"work", b"three", b"four", b"five")
    change(server, "ReadOnly")
    client = server.connect()
    assert client.ask(b"get work/peek\r\nget work\r\n") == value(b"work/peek", b"one") + value(b"work", b"one")
    assert client.ask(b"get work/open\r\nget work/abort\r\n") == value(b"work/open", b"two") + END
    assert client.ask(b"get work/open\r\nget work/close\r\n") == value(b"work/open", b"two") + END
    assert client.ask(b"monitor work 1 2\r\n") == value(b"work", b"three") + value(b"work", b"four") + END
    assert client.ask(b"confirm work 2\r\n") == END
    reply = client.ask(b"get work/t=1000/close/open\r\nconfirm work 1\r\n")
    assert reply == value(b"work/t=1000/close/open", b"five") + END
    assert client.ask(b"get work\r\nget new\r\n") == END + END
    assert not client.is_closed


@pytest.mark.parametrize("request_", READS.values(), ids=READS)
def test_quiescent_also_refuses_reads(request_: bytes) -> None:
    server = serving()
    change(server, "Quiescent")
    assert is_refused(server, request_ + b"version\r\n")
    client = server.connect()
    assert stat(client, b"work", "items") == "2"
    assert stat(client, b"work", "open_transactions") == "0"
    assert b"queue_new_" not in client.ask(b"stats\r\n")


def test_quiescent_allows_ending_open_reads() -> None:
    server = serving()
    client = server.connect()
    put = set_(b"work", b"three") + set_(b"work", b"four")
    assert client.ask(put) == STORED * 2
    for data in (b"one", b"two", b"three", b"four"):
        assert client.ask(b"get work/open\r\n") == value(b"work/open", data)
    change(server, "Quiescent")
    assert client.ask(b"get work/close\r\n") == END
    assert client.ask(b"get work/abort\r\n") == END
    assert client.ask(b"confirm work 2\r\n") == END
    assert client.ask(b"confirm work 1\r\n") == b"ERROR\r\n"
    assert not client.is_closed
    assert stat(client, b"work", "open_transactions") == "0"
    change(server, "Up")
    assert items(client, b"work") == [b"two"], "one was closed, two aborted, three and four confirmed"


@pytest.mark.parametrize("status", STATUSES)
def test_flush_all_expired_and_timer_work_in_every_status(status: str) -> None:
    server = serving()
    change(server, status)
    client = server.connect()
    assert client.ask(b"flush_all_expired\r\n") == b"1\r\n"
    assert (stat(client, b"fading", "items"), stat(client, b"fading", "expired_items")) == ("0", "1")
    assert not client.is_closed

    server = MemoryServer(config=loads('expirationTimerFrequency = "10s"'))
    client = server.connect()
    assert client.ask(set_(b"fading", b"old", expiry=1)) == STORED
    change(server, status)
    server.advance(9)
    assert stat(client, b"fading", "items") == "1"
    server.advance(1)
    assert (stat(client, b"fading", "items"), stat(client, b"fading", "expired_items")) == ("0", "1")


# How the status changes.

GRACE = 'statusChangeGracePeriod = "10s"\n'


def test_stricter_status_shows_at_once_and_refuses_after_grace_period() -> None:
    server = serving(GRACE)
    change(server, "ReadOnly")
    assert status_of(server) == b"READONLY\r\n"
    assert takes_puts(server)
    server.advance(9.75)
    assert takes_puts(server)
    server.advance(0.25)
    assert not takes_puts(server)
    assert takes_gets(server)

    change(server, "Quiescent")
    assert status_of(server) == b"QUIESCENT\r\n"
    server.advance(9.75)
    assert takes_gets(server)
    assert not takes_puts(server), "the current level stays in force"
    server.advance(0.25)
    assert not takes_gets(server)


def _warnings(events: list[LogEvent]) -> list[str]:
    return [formatEvent(event) for event in events if event["log_level"] >= LogLevel.warn]


@pytest.mark.parametrize("second", ["ReadOnly", "Quiescent"])
def test_second_change_is_ignored_unless_looser(second: str) -> None:
    file = MemoryStatusFile()
    server = MemoryServer(config=loads(GRACE), status_file=file)
    change(server, "ReadOnly")
    server.advance(5)
    with capturedLogs() as events:
        change(server, second)
    assert [line for line in _warnings(events) if second in line], "the log reports it"
    assert status_of(server) == b"READONLY\r\n"
    assert file.data == b"ReadOnly"
    assert takes_puts(server)
    server.advance(5)
    assert not takes_puts(server), "ten seconds after the first change, not the second"
    server.advance(60)
    assert takes_gets(server), "the second change has been forgotten"
    assert status_of(server) == b"READONLY\r\n"


def test_looser_status_applies_at_once_and_cancels_pending_change() -> None:
    server = serving(GRACE)
    change(server, "Quiescent")
    server.advance(5)
    change(server, "Up")
    assert status_of(server) == b"UP\r\n"
    server.advance(60)
    assert takes_puts(server)
    assert takes_gets(server)

    change(server, "Quiescent")
    server.advance(5)
    change(server, "ReadOnly")  # looser than the pending level, stricter than the current one
    assert status_of(server) == b"READONLY\r\n"
    assert not takes_puts(server), "at once"
    server.advance(60)
    assert takes_gets(server)

    change(server, "Quiescent")
    server.advance(10)
    assert not takes_gets(server)
    change(server, "ReadOnly")
    assert takes_gets(server), "at once"
    assert not takes_puts(server)


# How the status is stored.


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.parametrize("status", STATUSES)
def test_status_survives_restart(status: str, how: str, tmp_path: Path) -> None:
    default = "Up" if status == "Quiescent" else "Quiescent"
    server = MemoryServer(config=loads(f'defaultStatus = "{default}"\n' + GRACE), folder=tmp_path / "queues")
    change(server, status)
    getattr(server, how)()
    assert status_of(server) == status.upper().encode() + b"\r\n"
    assert takes_puts(server) is (status in ("Up", "WriteAvoid"))
    assert takes_gets(server) is (status != "Quiescent")


def test_status_file_holds_name_as_kestrel_writes_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    server = MemoryServer(config=Config(), folder=tmp_path / "queues", disk=disk)
    path = tmp_path / "queues" / ".kestrel" / "status"
    inodes = []
    for status in [*reversed(STATUSES), "QUIESCENT", "readonly"]:
        done_before = len(disk.calls)
        change(server, status)
        name = {"QUIESCENT": "Quiescent", "readonly": "ReadOnly"}.get(status, status)
        assert path.read_bytes() == name.encode()
        done = [call for call in disk.calls[done_before:] if call in ("write", "sync", "rename", "cut")]
        assert done == ["write", "sync", "rename"]
        inodes.append(path.stat().st_ino)
    assert all(old != new for old, new in pairwise(inodes)), "each change creates a new file"


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename"])
def test_unwritable_status_file_is_an_error_but_status_applies(operation: str, tmp_path: Path) -> None:
    disk = FaultyDisk()
    server = MemoryServer(config=Config(), folder=tmp_path / "queues", disk=disk)
    change(server, "WriteAvoid")
    client = server.connect()
    disk.fail(operation, errno.EACCES)
    reply = client.ask(b"status readonly\r\nstatus\r\n")
    assert reply.startswith(b"SERVER_ERROR ")
    assert reply.endswith(b"\r\nREADONLY\r\n")
    assert not client.is_closed
    assert not takes_puts(server)
    disk.mend()
    assert (tmp_path / "queues" / ".kestrel" / "status").read_bytes() == b"WriteAvoid", (
        "the last status that could be stored"
    )
    change(server, "Quiescent")
    server.crash()
    assert status_of(server) == b"QUIESCENT\r\n"


# Stopping.


def _server_with_emptied_queue(folder: Path, status: str) -> MemoryServer:
    """Return a server with an emptied queue and one that still has items."""
    server = MemoryServer(config=Config(), folder=folder)
    client: MemoryClient = server.connect()
    for number in range(20):
        assert client.ask(set_(b"empty", b"%d" % number) + set_(b"full", b"%d" % number)) == STORED * 2
    assert len(items(client, b"empty")) == 20
    assert client.ask(b"get full\r\n") == value(b"full", b"0")
    assert client.ask(b"get full/open\r\n") == value(b"full/open", b"1")
    change(server, status)
    return server


@pytest.mark.parametrize("status", ["ReadOnly", "Quiescent"])
def test_stop_in_read_only_or_quiescent_rewrites_empty_journals(status: str, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    server = _server_with_emptied_queue(folder, status)
    assert (folder / "empty").stat().st_size > 0
    server.stop()
    server.settle()
    assert (folder / "empty").read_bytes() == b"", "no records remain"
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["empty", "full"]
    restarted = MemoryServer(config=Config(), folder=folder)
    change(restarted, "Up")
    client = restarted.connect()
    assert items(client, b"empty") == []
    assert items(client, b"full") == [b"%d" % number for number in range(1, 20)]


@pytest.mark.parametrize("status", ["Up", "WriteAvoid"])
def test_stop_in_other_status_leaves_journals_unchanged(status: str, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    server = _server_with_emptied_queue(folder, status)
    before = (folder / "empty").read_bytes()
    assert before
    server.stop()
    server.settle()
    assert (folder / "empty").read_bytes() == before
