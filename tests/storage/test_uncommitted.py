"""`maxUncommittedBytes` keeps a disk that hangs from filling the memory."""

from __future__ import annotations

from functools import partial

import pytest

from kestrel.config.load import loads
from kestrel.errors import QueueFailed, StorageRefused
from kestrel.storage.uncommitted_budget import PUT_BYTES, UncommittedBudget
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage

STORED = b"STORED\r\n"
LIMIT = "maxUncommittedBytes = 1000\n"
REFUSED = b"SERVER_ERROR too much waits for the storage"


def put_request(counted_bytes: int, queue: bytes = b"work") -> bytes:
    """Return a put that counts as this many uncommitted bytes."""
    size = max(0, counted_bytes - PUT_BYTES)
    return b"set %b 0 0 %d\r\n%b\r\n" % (queue, size, bytes(size))


class LimitedServer(MemoryServer):
    """A server over a storage whose commits end when a test says so."""

    def __init__(self, config: str = "") -> None:
        self.stepped = SteppedStorage()
        super().__init__(self.stepped, config=loads(LIMIT + config))

    def put(self, counted_bytes: int, count: int = 1, queue: bytes = b"work") -> list[MemoryClient]:
        """Send a put from each of `count` new clients."""
        clients = [self.connect() for _ in range(count)]
        for client in clients:
            client.ask(put_request(counted_bytes, queue))
        return clients

    @property
    def items(self) -> int:
        """The items of "work"."""
        return self.manager.queue(b"work").store.items

    @property
    def uncommitted_bytes(self) -> int:
        return self.barrier.uncommitted.bytes

    def end_all_commits(self, error: Exception | None = None) -> None:
        """End the pending commits, and let later ones succeed at once."""
        self.stepped.holds_commits = False
        self.stepped.end_commits(error=error)
        self.settle()


@pytest.fixture
def server() -> LimitedServer:
    server = LimitedServer()
    server.connect().ask(put_request(1))
    server.connect().ask(b"get work\r\n")
    server.stepped.holds_commits = True
    return server


def test_puts_wait_above_the_limit_and_continue_below(server: LimitedServer) -> None:
    clients = server.put(300, count=6)
    assert server.items == 4, "the fourth put exceeds the limit, and the next two wait"
    assert server.uncommitted_bytes == 1200
    for _ in range(2):
        server.stepped.end_commits()
        server.settle()
    assert server.items == 6
    server.stepped.end_commits()
    server.settle()
    assert [client.take() for client in clients] == [STORED] * 6
    assert server.uncommitted_bytes == 0


def test_puts_are_refused_when_waiting_puts_reach_the_limit(server: LimitedServer) -> None:
    server.put(300, count=7)
    (waiting,) = server.put(300)
    assert waiting.take() == b""
    refused = server.connect()
    assert refused.ask(put_request(300)).startswith(REFUSED)
    assert not refused.is_closed
    assert refused.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"


def test_disconnect_of_a_waiting_client_drops_its_put(server: LimitedServer) -> None:
    server.put(500, count=2)
    (leaving,) = server.put(900)
    assert server.connect().ask(put_request(900)).startswith(REFUSED)
    leaving.disconnect()
    (waiting,) = server.put(900)
    assert waiting.take() == b""
    server.end_all_commits()
    assert waiting.take() == STORED
    assert server.items == 3


def test_waiting_put_continues_after_a_failed_commit(server: LimitedServer) -> None:
    first, second = server.put(1000, count=2)
    server.end_all_commits(error=QueueFailed("broken"))
    assert first.take() == b"SERVER_ERROR broken\r\n"
    assert second.take() == STORED
    assert server.uncommitted_bytes == 0


def test_put_of_many_items_waits_in_the_middle(server: LimitedServer) -> None:
    client = server.connect("text")
    assert client.ask(b"put work:\n" + b"x" * 144 + b"\n" + b"y" * 144 + b"\n" + b"z" * 144 + b"\n" + b"w\n\n") == b""
    assert server.items == 3
    server.end_all_commits()
    assert client.take() == b"+4\n"
    assert server.items == 4


def test_waiting_items_count_as_request_bytes(server: LimitedServer) -> None:
    request_deadlines = server.core.session_context.request_deadlines
    server.put(1000)
    client = server.connect("text")
    assert client.ask(b"put work:\n" + (b"x" * 200 + b"\n") * 3 + b"\n") == b""
    assert request_deadlines.bytes >= 600
    server.end_all_commits()
    assert client.take() == b"+3\n"
    assert (request_deadlines.bytes, len(request_deadlines)) == (0, 0)


def test_requests_without_disk_access_do_not_wait() -> None:
    server = LimitedServer('[[queues]]\nname = "light"\nkeepJournal = false\n')
    server.stepped.holds_commits = True
    server.put(1000, count=2)
    client = server.connect()
    assert client.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"
    assert client.ask(put_request(2000, b"light")) == STORED
    assert client.ask(put_request(2000, b"light")) == STORED
    assert client.ask(b"get light\r\n").startswith(b"VALUE light 0 1744\r\n")


@pytest.mark.parametrize("name", [b"parent", b"all"])
def test_put_that_reaches_a_durable_queue_waits(name: bytes) -> None:
    queues = '[[queues]]\nname = "parent"\nkeepJournal = false\n[[queues]]\nname = "parent+child"\nkeepJournal = true\n'
    server = LimitedServer(queues + '[[aliases]]\nname = "all"\ndestinationQueues = ["work"]\n')
    server.connect().ask(b"get parent+child\r\n")
    server.stepped.holds_commits = True
    server.put(1000)
    (waiting,) = server.put(10, queue=name)
    assert waiting.take() == b""
    assert server.barrier.uncommitted.is_full


def test_delayed_put_to_a_memory_queue_waits() -> None:
    server = LimitedServer('[[queues]]\nname = "light"\nkeepJournal = false\n')
    server.stepped.holds_commits = True
    server.put(1000)
    (waiting,) = server.put(10, queue=b"light/delay=1000")
    assert waiting.take() == b""
    before = server.uncommitted_bytes
    server.put(10, queue=b"light/delay=1000")
    assert server.uncommitted_bytes == before
    server.end_all_commits()
    assert waiting.take() == STORED


def test_reload_with_a_higher_limit_continues_waiting_puts(server: LimitedServer) -> None:
    server.put(1000)
    server.put(500)
    assert server.items == 1
    server.reload(loads("maxUncommittedBytes = 100000"))
    assert server.items == 2
    server.put(1000, count=3)
    assert server.items == 5


def test_reopened_queue_has_no_uncommitted_bytes(server: LimitedServer) -> None:
    queue = server.manager.queue(b"work")
    batch = server.barrier.touch(queue)
    batch.add_put(500)
    queue.store.failure = "broken"
    queue.reopen()
    queue.touch()
    assert batch.failure is not None
    assert server.uncommitted_bytes == 0


def test_small_items_count_more_than_their_data(server: LimitedServer) -> None:
    server.connect().ask(b"set work 0 0 1\r\nx\r\n" * 100)
    assert server.items == 4


def test_put_that_fails_lets_the_next_continue(server: LimitedServer) -> None:
    server.reload(loads(LIMIT + '[[queues]]\nname = "narrow"\nmaxItemSize = 300'))
    server.put(700)
    server.put(400, queue=b"slow")
    (refused,) = server.put(600, queue=b"narrow")
    (last,) = server.put(400)
    assert refused.take() == last.take() == b""
    server.stepped.end_commits(b"work")
    assert refused.take() == b"NOT_STORED\r\n"
    assert server.items == 2


def test_put_of_a_lost_client_lets_the_next_continue(server: LimitedServer) -> None:
    server.put(700)
    server.put(400, queue=b"slow")
    (leaving,) = server.put(600)
    server.put(400)
    server.stepped.end_commits(b"work")
    leaving.disconnect()
    server.settle()
    assert server.items == 2


def test_later_put_does_not_overtake_a_waiting_one(server: LimitedServer) -> None:
    server.put(1000)
    (first,) = server.put(1000)
    server.stepped.end_commits()
    late = server.connect()
    late.send(put_request(1000, b"other"))
    server.settle()
    assert server.stepped.committing == [b"work"]
    server.stepped.holds_commits = False
    server.stepped.end_commits()
    assert [client.take() for client in (first, late)] == [STORED] * 2


def test_changes_after_a_failed_commit_are_no_longer_counted(server: LimitedServer) -> None:
    first, second = server.put(300, count=2)
    server.end_all_commits(error=QueueFailed("broken"))
    assert first.take() == second.take() == b"SERVER_ERROR broken\r\n"
    assert server.uncommitted_bytes == 0


# The budget.


def recorded_waits(uncommitted: UncommittedBudget, size: int, count: int) -> list[int]:
    """Add waiters of this size, and return a list of those that continue."""
    continued: list[int] = []
    for number in range(count):
        uncommitted.wait(size, partial(continued.append, number))
    return continued


def test_single_put_of_any_size_may_wait() -> None:
    uncommitted = UncommittedBudget(10)
    assert not uncommitted.is_full
    uncommitted.bytes += 1000
    assert uncommitted.is_full
    continued = recorded_waits(uncommitted, 1000, 1)
    with pytest.raises(StorageRefused):
        uncommitted.wait(1, lambda: None)
    uncommitted.release(1000)
    assert continued == [0]


def test_released_bytes_continue_the_first_waiters_only() -> None:
    uncommitted = UncommittedBudget(100)
    uncommitted.bytes = 200
    continued = recorded_waits(uncommitted, 30, 3)
    uncommitted.release(150)
    assert continued == [0, 1]
