"""Expiry: when an item expires, how it is removed, and queues deleted because of their age."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.testing.server import EPOCH_MS, MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.journal.handwritten import addx
from tests.memcache_text import END, is_missing, items, put, set_, stat, stats, value
from tests.session.servers import store_of

MS = 0.001


def config_of(settings: str, *, timer: str = "none") -> Config:
    """Return a configuration with these settings for the queue "work" and this interval of the expiration timer."""
    return loads(
        f"maxOpenTransactions = 100\nexpirationTimerFrequency = '{timer}'\n[[queues]]\nname = 'work'\n{settings}\n"
    )


def served(settings: str = "", *, timer: str = "none", folder: Path | None = None) -> MemoryServer:
    return MemoryServer(config=config_of(settings, timer=timer), folder=folder)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def counts(client: MemoryClient, queue: bytes) -> tuple[int, int]:
    """Return the number of items in a queue and the number that have expired. Asking expires nothing."""
    return int(stat(client, queue, "items")), int(stat(client, queue, "expired_items"))


# When an item expires.


@pytest.mark.parametrize(
    ("expiry", "max_age", "lives_s"),
    [
        (5, "none", 5),
        (0, "10s", 10),
        (5, "10s", 5),
        (20, "10s", 10),
        (10, "10s", 10),
        (EPOCH_MS // 1000 + 5, "10s", 5),
        (EPOCH_MS // 1000 + 20, "10s", 10),
    ],
)
def test_item_expires_by_earlier_of_own_expiry_and_max_age(expiry: int, max_age: str, lives_s: int) -> None:
    server = served(f"maxAge = '{max_age}'")
    client = server.connect()
    put(client, b"work", b"item", expiry=expiry)
    server.advance(lives_s)
    assert client.ask(b"get work/peek\r\n") == value(b"work/peek", b"item"), "not yet older than maxAge"
    server.advance(MS)
    assert client.ask(b"get work/peek\r\nget work\r\n") == END * 2
    assert counts(client, b"work") == (0, 1)


def test_reload_of_max_age_applies_to_queued_items() -> None:
    server = served("maxAge = 'none'")
    client = server.connect()
    put(client, b"work", b"old")
    server.advance(60)
    put(client, b"work", b"young")
    server.reload(config_of("maxAge = '30s'"))
    assert client.ask(b"get work/peek\r\n") == value(b"work/peek", b"young")
    server.reload(config_of("maxAge = '1h'"))
    server.advance(31)
    assert client.ask(b"get work/peek\r\n") == value(b"work/peek", b"young"), "it may be an hour old now"
    server.advance(3600)
    server.reload(config_of("maxAge = 'none'"))
    assert items(client, b"work") == [b"young"], "nothing touched the queue while the item was too old"


def test_journal_keeps_expiry_that_client_sent(tmp_path: Path) -> None:
    server = served("maxAge = '5s'", folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"work", b"never")
    put(client, b"work", b"later", expiry=100)
    put(client, b"work", b"sooner", expiry=3)
    assert (tmp_path / "queues" / "work").read_bytes() == (
        addx(b"never", EPOCH_MS)
        + addx(b"later", EPOCH_MS, EPOCH_MS + 100_000)
        + addx(b"sooner", EPOCH_MS, EPOCH_MS + 3000)
    )
    server.restart(config_of("maxAge = 'none'"))
    server.advance(99)
    assert items(server.connect(), b"work") == [b"never", b"later"]


# How expired items are removed.


def test_timer_expires_items_of_unused_queues(tmp_path: Path) -> None:
    server = served(timer="2s", folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"work", b"one", b"two", expiry=3)
    put(client, b"other", b"one", expiry=4)
    server.advance(2)
    assert (counts(client, b"work"), counts(client, b"other")) == ((2, 0), (1, 0))
    server.advance(2)
    assert (counts(client, b"work"), counts(client, b"other")) == ((0, 2), (1, 0))
    server.advance(2)
    assert counts(client, b"other") == (0, 1)
    server.restart(config_of(""))
    assert [items(server.connect(), queue) for queue in (b"work", b"other")] == [[], []]

    behind = served("maxMemorySize = '1KiB'", timer="1s", folder=tmp_path / "behind")
    client = behind.connect()
    put(client, b"work", *(b"%0100d" % number for number in range(100)), expiry=3)
    assert int(stat(client, b"work", "mem_items")) < 20
    for _ in range(100):
        behind.advance(1)
    assert counts(client, b"work") == (0, 100), "items that are only on disk expire too"

    without = served()
    client = without.connect()
    put(client, b"work", b"one", b"two", expiry=3)
    without.advance(1_000_000)
    assert counts(client, b"work") == (2, 0)
    assert client.ask(b"get work/peek\r\n") == END
    assert counts(client, b"work") == (0, 2)


def test_sweep_expires_at_most_max_expire_sweep_items_per_queue() -> None:
    text = "expirationTimerFrequency = '10s'\n" + "".join(
        f"[[queues]]\nname = '{name}'\nmaxExpireSweep = {most}\n" for name, most in (("a", 10), ("b", 10), ("c", 1500))
    )
    server = MemoryServer(config=loads(text))
    client = server.connect()
    for queue, count in ((b"a", 25), (b"b", 12), (b"c", 4000), (b"d", 4000)):
        put(client, queue, *numbered(count), expiry=1)
    left = []
    for _ in range(3):
        server.advance(10)
        left.append([counts(client, queue)[0] for queue in (b"a", b"b", b"c", b"d")])
    assert left == [[15, 2, 2500, 0], [5, 0, 1000, 0], [0, 0, 0, 0]]
    assert counts(client, b"a") == (0, 25)


@pytest.mark.parametrize(
    "request_bytes", [b"get work", b"get work/peek", b"get work/open", b"get work/t=1000", b"monitor work 1 1"]
)
@pytest.mark.parametrize("max_expire_sweep", [1, 3, 5])
def test_get_never_returns_expired_item(request_bytes: bytes, max_expire_sweep: int) -> None:
    server = served(f"maxExpireSweep = {max_expire_sweep}", timer="1h")
    client = server.connect()
    put(client, b"work", *numbered(5), expiry=1)
    put(client, b"work", b"fresh")
    put(client, b"work", *numbered(5), expiry=1)
    server.advance(2)
    reply = client.ask(request_bytes + b"\r\n")
    assert reply == value(request_bytes.split()[1], b"fresh") + (END if b"monitor" in request_bytes else b"")
    taker = server.connect()
    assert items(taker, b"work") == ([b"fresh"] if b"peek" in request_bytes else [])
    assert counts(taker, b"work") == (0, 10)


def test_flush_expired_ignores_max_expire_sweep() -> None:
    server = served("maxExpireSweep = 2", timer="1h")
    client = server.connect()
    put(client, b"work", *numbered(7), expiry=1)
    put(client, b"other", *numbered(3), expiry=1)
    server.advance(2)
    assert client.ask(b"flush_expired work\r\n") == b"7\r\n"
    put(client, b"work", *numbered(3000), expiry=1)
    server.advance(2)
    assert client.ask(b"flush_all_expired\r\n") == b"3003\r\n"
    assert (counts(client, b"work"), counts(client, b"other")) == ((0, 3007), (0, 3))


def test_flush_expired_stops_at_first_unexpired_item() -> None:
    server = served(timer="10s")
    client = server.connect()
    for queue in (b"work", b"other", b"third"):
        put(client, queue, b"first", b"second", expiry=1)
        put(client, queue, b"fresh")
        put(client, queue, b"behind", expiry=1)
    server.advance(2)
    assert client.ask(b"flush_expired work\r\n") == b"2\r\n"
    assert counts(client, b"work") == (2, 2)
    assert client.ask(b"flush_all_expired\r\n") == b"4\r\n"
    server.advance(8)
    assert [counts(client, queue) for queue in (b"work", b"other", b"third")] == [(2, 2)] * 3, (
        "the timer stops there too"
    )
    assert client.ask(b"get work/open\r\nflush_expired work\r\n").startswith(value(b"work/open", b"fresh"))
    assert counts(client, b"work") == (0, 3), "it is now at the head"


@pytest.mark.parametrize(
    "request_bytes", [b"get work", b"get work/t=5000", b"get work/open", b"get work/peek", b"monitor work 5 1"]
)
@pytest.mark.parametrize("fresh", [[b"fresh"], []])
def test_get_behind_million_expired_items_does_not_block_others(request_bytes: bytes, fresh: list[bytes]) -> None:
    server = served()
    writer, waiter, other = server.connect(), server.connect(), server.connect()
    put(writer, b"work", *numbered(20_000), expiry=1)
    put(writer, b"work", *fresh)
    server.advance(2)
    waiter.send(request_bytes + b"\r\n")
    seen: list[int] = []
    while not waiter.received and seen[-1:] != [20_000]:
        other.send(b"dump_stats work\r\n")
        for _ in range(4):
            server.tick()
        assert other.received.endswith(b"}\r\nEND\r\n"), "other clients are answered within a few ticks"
        (expired,) = re.findall(rb"expired_items=(\d+)", other.received)
        seen.append(int(expired))
        other.received.clear()
    assert len(set(seen)) > 5, "other clients were served during the sweep, before the get was answered"
    key = request_bytes.split()[1]
    if fresh:
        assert waiter.take() == value(key, b"fresh") + (END if b"monitor" in request_bytes else b"")
    elif b"t=" in request_bytes or b"monitor" in request_bytes:
        assert waiter.take() == b"", "the get still waits for an item"
        put(writer, b"work", b"later")
        assert waiter.take().startswith(value(key, b"later"))
    else:
        assert waiter.take() == END


def test_flush_expired_reaches_items_only_on_disk(tmp_path: Path) -> None:
    server = served("maxMemorySize = '1KiB'", folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"work", *(b"%0100d" % number for number in range(100)), expiry=1)
    put(client, b"work", b"fresh")
    put(client, b"work", b"behind", expiry=1)
    assert int(stat(client, b"work", "mem_items")) < 20
    server.advance(2)
    assert client.ask(b"flush_expired work\r\n") == b"100\r\n"
    assert counts(client, b"work") == (2, 100)
    server.restart()
    client = server.connect()
    assert counts(client, b"work")[0] == 2
    assert items(client, b"work") == [b"fresh"]

    stepped = SteppedStorage()
    server = MemoryServer(stepped)
    client = server.connect()
    put(client, b"work", b"one", b"two", expiry=1)
    server.advance(2)
    store = store_of(server)
    store.page_out()
    assert client.ask(b"flush_expired work\r\n") == b"", "it waits for the disk"
    store.end_fill()
    assert client.take() == b"2\r\n"


# Queues that expire.


def test_timer_deletes_empty_queue_older_than_max_queue_age(tmp_path: Path) -> None:
    server = served("maxQueueAge = '10s'", timer="1s", folder=tmp_path / "queues")
    client = server.connect()
    for queue in (b"work", b"other"):
        put(client, queue, b"item")
        assert client.ask(b"get %b\r\n" % queue) == value(queue, b"item")
    for _ in range(10):
        server.advance(1)
        assert not is_missing(client, b"work")
    assert (stats(client)["queue_expires"], stats(client)["queue_deletes"]) == ("0", "0")
    server.advance(1)
    assert is_missing(client, b"work")
    assert (stats(client)["queue_expires"], stats(client)["queue_deletes"]) == ("1", "1")
    assert not (tmp_path / "queues" / "work").exists()
    server.advance(1000)
    assert stat(client, b"other", "items") == "0", "it has no maxQueueAge"
    put(client, b"work", b"again")
    assert items(client, b"work") == [b"again"]

    without = served("maxQueueAge = '10s'")
    client = without.connect()
    assert client.ask(b"get work\r\n") == END
    without.advance(1000)
    assert client.ask(b"get work\r\n") == END
    assert not is_missing(client, b"work"), "only the timer deletes it"


def test_queue_age_counts_from_creation_or_server_start(tmp_path: Path) -> None:
    server = served("maxQueueAge = '10s'", timer="1s", folder=tmp_path / "queues")

    def use_every_second(seconds: int) -> None:
        for _ in range(seconds):
            client = server.connect()
            put(client, b"work", b"item")
            assert client.ask(b"get work\r\n") == value(b"work", b"item")
            server.advance(1)

    def is_there() -> bool:
        return not is_missing(server.connect(), b"work")

    server.advance(25)
    use_every_second(10)
    assert is_there()
    server.advance(1)
    assert not is_there(), "it was created eleven seconds ago"

    use_every_second(8)
    server.restart()
    assert is_there()
    use_every_second(10)
    assert is_there(), "the server was started ten seconds ago"
    server.advance(1)
    assert not is_there()


@pytest.mark.parametrize(
    ("held_by", "let_go_by"),
    [
        (set_(b"work", b"item"), b"get work\r\n"),
        (set_(b"work", b"item") + b"get work/open\r\n", b"get work/close\r\n"),
        (b"get work/t=30000\r\n", b""),
        (b"get work/t=30000/open\r\n", b""),
        (b"get work/t=30000/peek\r\n", b""),
        (b"monitor work 30\r\n", b""),
    ],
)
def test_queue_in_use_does_not_expire(held_by: bytes, let_go_by: bytes) -> None:
    server = served("maxQueueAge = '10s'", timer="1s")
    client, other = server.connect(), server.connect()
    client.send(held_by)
    server.advance(20)
    assert not is_missing(other, b"work")
    if not let_go_by:
        assert client.take() == b"", "the client still waits"
    client.send(let_go_by)
    server.advance(20)
    assert client.take().endswith(END), "the wait is over"
    assert is_missing(other, b"work")
