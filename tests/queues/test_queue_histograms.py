"""Histograms of queues: counts, sizes and times. The server's totals include deleted queues."""

from __future__ import annotations

import pytest

from kestrel.admin.server_view import add_histograms
from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.errors import QueueFailed
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.memcache_text import END, STORED, set_, value


def of(server: MemoryServer, queue: bytes = b"work") -> QueueHistograms:
    return server.manager.queue(queue).histograms


def of_all(server: MemoryServer) -> QueueHistograms:
    total = QueueHistograms()
    for _ in add_histograms(server.manager, total):
        pass
    return total


@pytest.fixture
def storage() -> SteppedStorage:
    return SteppedStorage()


@pytest.fixture
def server(storage: SteppedStorage) -> MemoryServer:
    return MemoryServer(storage)


def test_puts_and_their_sizes_are_counted(server: MemoryServer) -> None:
    assert server.connect().ask(set_(b"work", b"12345") + set_(b"work", b"") + set_(b"other", b"1")) == STORED * 3
    histograms = of(server)
    assert (histograms.puts, histograms.request_size.sum, histograms.request_size.maximum) == (2, 5, 5)


def test_child_counts_puts_to_its_parent(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(b"get work+a\r\n")
    client.ask(set_(b"work", b"123"))
    assert (of(server).puts, of(server, b"work+a").puts, of(server, b"work+a").request_size.sum) == (1, 1, 3)


def test_refused_put_is_not_counted(server: MemoryServer, storage: SteppedStorage) -> None:
    storage.refusal = "the disk is full"
    assert server.connect().ask(set_(b"work", b"1")).startswith(b"SERVER_ERROR")
    assert of(server).puts == 0


def test_hits_and_misses_are_counted_but_peeks_are_not(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(set_(b"work", b"1") + set_(b"work", b"2"))
    for request in (b"get work/peek", b"get work", b"get work/open", b"get work/close", b"get work/peek", b"get work"):
        client.ask(request + b"\r\n")
    histograms = of(server)
    assert (histograms.hits, histograms.misses) == (2, 1)
    assert (histograms.get_hit_latency_usec.count, histograms.get_miss_latency_usec.count) == (2, 1)


def test_redelivered_item_counts_as_hit_each_time(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(set_(b"work", b"1") + b"get work/open\r\n" + b"get work/abort\r\n")
    assert client.ask(b"get work\r\n") == value(b"work", b"1")
    assert of(server).hits == 2


def test_age_of_item_is_measured_when_taken(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(set_(b"work", b"1"))
    server.advance(1.5)
    client.ask(set_(b"work", b"2"))
    server.advance(0.5)
    client.ask(b"get work\r\nget work\r\n")
    delivered = of(server).delivery_latency_msec
    assert (delivered.count, delivered.minimum, delivered.maximum) == (2, 500, 2000)


def test_item_from_the_future_has_age_zero(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(set_(b"work", b"1"))
    server.step_wall_clock(-10_000)
    client.ask(b"get work\r\n")
    assert (of(server).delivery_latency_msec.count, of(server).delivery_latency_msec.sum) == (1, 0)


def test_waiting_time_is_part_of_get_latency(server: MemoryServer) -> None:
    waiting = server.connect()
    assert waiting.ask(b"get work/t=60000\r\n") == b""
    server.advance(5)
    server.connect().ask(set_(b"work", b"1"))
    assert waiting.take() == value(b"work/t=60000", b"1")
    taken = of(server).get_hit_latency_usec
    assert (taken.count, taken.sum) == (1, 5_000_000)
    assert of(server).misses == 0


def test_timed_out_wait_is_a_miss_with_its_time(server: MemoryServer) -> None:
    waiting = server.connect()
    assert waiting.ask(b"get work/t=250\r\n") == b""
    server.advance(0.25)
    assert waiting.take() == END
    histograms = of(server)
    assert (histograms.misses, histograms.get_miss_latency_usec.count) == (1, 0)
    assert (histograms.get_timeout_msec.count, histograms.get_timeout_msec.sum) == (1, 250)


def test_disconnected_waiter_is_no_miss(server: MemoryServer) -> None:
    waiting = server.connect()
    waiting.ask(b"get work/t=250\r\n")
    waiting.disconnect()
    server.advance(1)
    assert of(server).misses == 0


def test_items_of_a_monitor_count_as_hits(server: MemoryServer) -> None:
    server.session_settings = Config(max_open_transactions=10)
    client = server.connect()
    client.ask(b"".join(set_(b"work", b"%d" % number) for number in range(5)))
    assert client.ask(b"monitor work 1 4\r\n").count(b"VALUE") == 4
    assert of(server).hits == 4


def test_put_latency_includes_its_commit(server: MemoryServer, storage: SteppedStorage) -> None:
    storage.holds_commits = True
    client = server.connect()
    assert client.ask(set_(b"work", b"1") + set_(b"work", b"2")) == b""
    assert of(server).set_latency_usec.count == 0
    server.advance(0.25)
    storage.end_commits()
    assert client.take() == STORED * 2
    latency = of(server).set_latency_usec
    assert (latency.count, latency.minimum, latency.maximum) == (2, 250_000, 250_000)


def test_get_latency_includes_its_commit(server: MemoryServer, storage: SteppedStorage) -> None:
    client = server.connect()
    client.ask(set_(b"work", b"1"))
    storage.holds_commits = True
    assert client.ask(b"get work\r\n") == b""
    server.advance(0.25)
    storage.end_commits()
    assert client.take() == value(b"work", b"1")
    assert (of(server).get_hit_latency_usec.count, of(server).get_hit_latency_usec.sum) == (1, 250_000)


def test_lost_batch_has_no_latency(server: MemoryServer, storage: SteppedStorage) -> None:
    storage.holds_commits = True
    client = server.connect()
    client.ask(set_(b"work", b"1"))
    storage.end_commits(error=QueueFailed("the disk is broken"))
    assert client.take().startswith(b"SERVER_ERROR")
    assert of(server).set_latency_usec.count == 0
    assert of_all(server).set_latency_usec.count == 0


def test_total_includes_deleted_queues(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(set_(b"work", b"12") + b"get work\r\n" + b"get work\r\n" + set_(b"other", b"1"))
    client.ask(b"delete work\r\n")
    client.ask(set_(b"work", b"345"))
    histograms = of_all(server)
    assert (histograms.puts, histograms.request_size.sum, histograms.hits, histograms.misses) == (3, 6, 1, 1)
    assert of(server).puts == 1


def test_wait_ended_by_delete_is_a_miss_in_the_total(server: MemoryServer) -> None:
    waiting = server.connect()
    waiting.ask(b"get work/t=60000\r\n")
    server.advance(2)
    server.connect().ask(b"delete work\r\n")
    assert waiting.take() == END
    histograms = of_all(server)
    assert (histograms.misses, histograms.get_timeout_msec.sum) == (1, 2_000)


def test_put_safe_after_delete_counts_in_the_total(server: MemoryServer, storage: SteppedStorage) -> None:
    storage.holds_commits = True
    putting, deleting = server.connect(), server.connect()
    putting.ask(set_(b"work", b"1"))
    deleting.ask(b"delete work\r\n")
    server.advance(1)
    while storage.committing:
        storage.end_commits()
        server.settle()
    assert putting.take() == STORED
    latency = of_all(server).set_latency_usec
    assert (latency.count, latency.sum) == (1, 1_000_000)


def test_total_includes_masked_queues(server: MemoryServer) -> None:
    server.connect().ask(set_(b"work", b"12"))
    server.reload(loads('[[aliases]]\nname = "work"\ndestinationQueues = ["other"]'))
    assert of_all(server).puts == 1
