"""maxUncommittedBytes: a disk that hangs does not fill the memory."""

from __future__ import annotations

import pytest

from kestrel.config.load import loads
from kestrel.errors import QueueFailed, StorageRefused
from kestrel.storage.uncommitted_budget import PUT_BYTES, UncommittedBudget
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage

STORED = b"STORED\r\n"


def set_(size: int, queue: bytes = b"work") -> bytes:
    """A put that takes so many bytes with all that is around its data."""
    size = max(0, size - PUT_BYTES)
    return b"set %b 0 0 %d\r\n%b\r\n" % (queue, size, bytes(size))


@pytest.fixture
def storage() -> SteppedStorage:
    return SteppedStorage()


@pytest.fixture
def server(storage: SteppedStorage) -> MemoryServer:
    server = MemoryServer(storage, config=loads("maxUncommittedBytes = 1000"))
    server.connect().ask(set_(1))
    server.connect().ask(b"get work\r\n")
    storage.holds_commits = True
    return server


def putting(server: MemoryServer, size: int, count: int) -> list[MemoryClient]:
    """So many clients, each of which has put an item."""
    clients = [server.connect() for _ in range(count)]
    for client in clients:
        client.ask(set_(size))
    return clients


def items(server: MemoryServer, name: bytes = b"work") -> int:
    return server.manager.queue(name).store.items


def test_puts_wait_while_too_much_is_not_safe_and_go_on_when_it_is(
    server: MemoryServer, storage: SteppedStorage
) -> None:
    clients = putting(server, 300, 6)
    assert items(server) == 4, "the last passed the limit, and two wait"
    assert server.barrier.uncommitted.bytes == 1200
    storage.end_commits()  # of the first
    server.settle()
    storage.end_commits()
    server.settle()
    assert items(server) == 6
    storage.end_commits()
    server.settle()
    assert [client.take() for client in clients] == [STORED] * 6
    assert server.barrier.uncommitted.bytes == 0


def test_when_as_much_waits_puts_are_refused_and_the_connection_stays(
    server: MemoryServer, storage: SteppedStorage
) -> None:
    putting(server, 300, 4)
    putting(server, 300, 3)
    (client,) = putting(server, 300, 1)
    assert client.take() == b""
    refused = server.connect()
    assert refused.ask(set_(300)).startswith(b"SERVER_ERROR too much waits for the storage")
    assert not refused.is_closed
    assert refused.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"


def test_a_client_that_leaves_makes_room_in_line_and_its_put_never_happens(
    server: MemoryServer, storage: SteppedStorage
) -> None:
    putting(server, 500, 2)
    (leaving,) = putting(server, 900, 1)
    assert server.connect().ask(set_(900)).startswith(b"SERVER_ERROR")
    leaving.disconnect()
    (another,) = putting(server, 900, 1)
    assert another.take() == b""
    storage.holds_commits = False
    storage.end_commits()
    server.settle()
    assert another.take() == STORED
    assert items(server) == 3


def test_a_failing_disk_lets_those_who_wait_go_on(server: MemoryServer, storage: SteppedStorage) -> None:
    first, second = putting(server, 1000, 2)
    storage.holds_commits = False
    storage.end_commits(error=QueueFailed("broken"))
    server.settle()
    assert first.take() == b"SERVER_ERROR broken\r\n"
    assert second.take() == STORED
    assert server.barrier.uncommitted.bytes == 0


def test_a_put_of_many_items_goes_on_bit_by_bit(server: MemoryServer, storage: SteppedStorage) -> None:
    client = server.connect("text")
    assert client.ask(b"put work:\n" + b"x" * 144 + b"\n" + b"y" * 144 + b"\n" + b"z" * 144 + b"\n" + b"w\n\n") == b""
    assert items(server) == 3
    storage.holds_commits = False
    storage.end_commits()
    assert client.take() == b"+4\n"
    assert items(server) == 4


def test_what_a_put_still_has_to_do_counts_in_what_requests_take(server: MemoryServer, storage: SteppedStorage) -> None:
    request_deadlines = server.core.session_context.request_deadlines
    putting(server, 1000, 1)
    client = server.connect("text")
    assert client.ask(b"put work:\n" + (b"x" * 200 + b"\n") * 3 + b"\n") == b""
    assert request_deadlines.bytes >= 600
    storage.holds_commits = False
    storage.end_commits()
    assert client.take() == b"+3\n"
    assert (request_deadlines.bytes, len(request_deadlines)) == (0, 0)


def test_what_needs_no_disk_goes_on(storage: SteppedStorage) -> None:
    server = MemoryServer(
        storage, config=loads('maxUncommittedBytes = 1000\n[[queues]]\nname = "light"\nkeepJournal = false\n')
    )
    storage.holds_commits = True
    putting(server, 1000, 2)
    client = server.connect()
    assert client.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"
    assert client.ask(set_(2000, b"light")) == STORED
    assert client.ask(set_(2000, b"light")) == STORED
    assert client.ask(b"get light\r\n").startswith(b"VALUE light 0 1744\r\n")


def test_a_reload_that_allows_more_lets_those_go_on_who_wait(
    server: MemoryServer, storage: SteppedStorage
) -> None:
    putting(server, 1000, 1)
    putting(server, 500, 1)
    assert items(server) == 1
    server.reload(loads("maxUncommittedBytes = 100000"))
    assert items(server) == 2
    putting(server, 1000, 3)
    assert items(server) == 5


@pytest.mark.parametrize("name", ["parent", "all"])
def test_what_leads_to_a_disk_waits_for_it(storage: SteppedStorage, name: str) -> None:
    queues = '[[queues]]\nname = "parent"\nkeepJournal = false\n[[queues]]\nname = "parent+child"\nkeepJournal = true\n'
    alias = '[[aliases]]\nname = "all"\ndestinationQueues = ["work"]\n'
    server = MemoryServer(storage, config=loads(f"maxUncommittedBytes = 1000\n{queues}{alias}"))
    server.connect().ask(b"get parent+child\r\n")
    storage.holds_commits = True
    putting(server, 1000, 1)
    assert server.connect().ask(set_(10, name.encode())) == b""
    assert server.barrier.uncommitted.is_full


def test_a_queue_that_is_opened_anew_holds_no_room(server: MemoryServer, storage: SteppedStorage) -> None:
    queue = server.manager.queue(b"work")
    batch = queue.touch()
    server.barrier.count_item(batch, 500)
    queue.store.failure = "broken"
    queue.reopen()
    queue.touch()
    assert batch.failure is not None
    assert server.barrier.uncommitted.bytes == 0


def test_small_items_take_more_than_their_data(server: MemoryServer, storage: SteppedStorage) -> None:
    client = server.connect()
    client.ask(b"set work 0 0 1\r\nx\r\n" * 100)
    assert items(server) == 4


def test_there_is_always_room_for_one() -> None:
    uncommitted = UncommittedBudget(10)
    assert not uncommitted.is_full
    uncommitted.bytes += 1000
    assert uncommitted.is_full
    gone_on: list[int] = []
    uncommitted.wait(1000, lambda: gone_on.append(1))
    with pytest.raises(StorageRefused):
        uncommitted.wait(1, lambda: gone_on.append(2))
    uncommitted.release(1000)
    assert gone_on == [1]


def test_who_came_first_goes_on_first_and_no_more_than_there_is_room_for() -> None:
    uncommitted = UncommittedBudget(100)
    uncommitted.bytes = 200
    gone_on: list[int] = []
    for number in range(3):
        uncommitted.wait(30, lambda number=number: gone_on.append(number))
    uncommitted.release(150)
    assert gone_on == [0, 1]


def test_who_is_let_in_and_puts_nothing_lets_the_next_in(server: MemoryServer, storage: SteppedStorage) -> None:
    server.reload(loads('maxUncommittedBytes = 1000\n[[queues]]\nname = "narrow"\nmaxItemSize = 300'))
    putting(server, 700, 1)
    server.connect().ask(set_(400, b"slow"))
    refused, last = server.connect(), server.connect()
    assert refused.ask(set_(600, b"narrow")) == b""
    assert last.ask(set_(400)) == b""
    storage.end_commits(b"work")
    assert refused.take() == b"NOT_STORED\r\n"
    assert items(server) == 2


def test_who_is_let_in_and_has_left_lets_the_next_in(server: MemoryServer, storage: SteppedStorage) -> None:
    putting(server, 700, 1)
    server.connect().ask(set_(400, b"slow"))
    (leaving,) = putting(server, 600, 1)
    putting(server, 400, 1)
    storage.end_commits(b"work")
    leaving.disconnect()
    server.settle()
    assert items(server) == 2


def test_who_comes_while_others_wait_does_not_go_before_them(server: MemoryServer, storage: SteppedStorage) -> None:
    putting(server, 1000, 1)
    (first,) = putting(server, 1000, 1)
    storage.end_commits()
    late = server.connect()
    late.send(set_(1000, b"other"))
    server.settle()
    assert storage.committing == [b"work"]
    storage.holds_commits = False
    storage.end_commits()
    assert [client.take() for client in (first, late)] == [STORED] * 2


def test_what_is_recorded_behind_a_commit_that_fails_counts_no_longer(
    server: MemoryServer, storage: SteppedStorage
) -> None:
    first, second = putting(server, 300, 2)
    storage.holds_commits = False
    storage.end_commits(error=QueueFailed("broken"))
    server.settle()
    assert first.take() == second.take() == b"SERVER_ERROR broken\r\n"
    assert server.barrier.uncommitted.bytes == 0
