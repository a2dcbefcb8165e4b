"""What every backend promises, as tests: a backend's test class inherits them and says how to make one.

Each test is about one sentence of `kestrel.storage.interfaces`. `HistoryMachine` tries random histories, with
restarts where the backend is durable, against a model that is a list and a dict.
"""

from __future__ import annotations

import itertools
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from kestrel.config.model import QueueSettings
from kestrel.errors import ItemTooLarge, QueueFailed
from kestrel.item import Item
from kestrel.storage.interfaces import InThread, IQueueStorage, IStorage
from kestrel.testing.threads import SteppedThreads

ADD_MS = 1_700_000_000_000

DATA = {
    "empty": b"",
    "every byte": bytes(range(256)),
    "line ends": b"\r\nEND\r\n",
    "zeros": bytes(1000),
    "looks like records": b"\x01\x02\x10\x00\x00\x00\x05\x01\x00\x00\x00",
    "a megabyte": b"\xff" * (1 << 20),
}

NAMES = {
    "high bytes": b"\xe9t\xe9",
    "the low half of the high bytes": bytes(range(0x80, 0xC0)),
    "the high half of the high bytes": bytes(range(0xC0, 0x100)),
    "its own UTF-8 spelling": b"\xc3\xa9",
    "a fanout child": b"work+child",
    "two pluses": b"a+b+c",
    "a plus at the end": b"x+",
    "200 bytes": b"n" * 200,
    "shell characters": b"-rf*?;$(x)'\"\\:|",
}


class Subject:
    """A started storage with its clock and threads, and short words for what tests do with it."""

    def __init__(self, contract: StorageContract, folder: Path) -> None:
        self.clock = Clock()
        self.threads = SteppedThreads()
        self.storage = contract.make(folder, self.clock, self.threads)
        self.loaded = self.wait(self.storage.start(lambda name: QueueSettings()))
        self._is_closed = False

    def wait(self, deferred: Deferred) -> object:
        """What it fires with, when the threads have run; raises its failure."""
        results: list[object] = []
        deferred.addBoth(results.append)
        self.threads.run_all()
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]

    def queue(self, name: bytes = b"work", **options: object) -> IQueueStorage:
        return self.storage.queue(name, QueueSettings(**options))

    def put(self, queue: IQueueStorage, *items: bytes) -> None:
        for data in items:
            self.storage.put((queue,), data, ADD_MS, 0)

    def commit(self, *queues: IQueueStorage) -> None:
        """Commit and wait for it."""
        for _, outcome in self.storage.commit(queues):
            self.wait(outcome)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.wait(self.storage.close())


def take_all(queue: IQueueStorage) -> list[Item]:
    """Every item of a queue, taken for good."""
    return list(iter(lambda: queue.take(False), None))


def take_all_data(queue: IQueueStorage) -> list[bytes]:
    """The data of every item of a queue, taken for good."""
    return [item.data for item in take_all(queue)]


def look_through(queue: IQueueStorage) -> list[Item]:
    """Every item of a queue, which is as it was afterwards."""
    items = list(iter(lambda: queue.take(True), None))
    queue.put_back([item.xid for item in items], False)
    return items


class HugeItem(bytes):
    """Two gigabytes, by its own account."""

    def __len__(self) -> int:
        return 1 << 31


class StorageContract(ABC):
    """Inherit this, say how to make a storage, and whether it outlives its process."""

    is_durable = False
    max_examples = 60

    @abstractmethod
    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> IStorage:
        """A storage that is not started yet; one that is made of the same folder again has the same queues."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[Subject]:
        subject = Subject(self, tmp_path / "queues")
        yield subject
        subject.close()

    # Shape.

    def test_a_storage_and_its_queues_provide_their_interfaces(self, subject: Subject) -> None:
        assert verifyObject(IStorage, subject.storage)
        assert verifyObject(IQueueStorage, subject.queue())

    def test_a_new_storage_has_no_queues_and_refuses_nothing(self, subject: Subject) -> None:
        assert subject.loaded == {}
        assert subject.storage.refusal is None

    # Order and contents.

    def test_items_come_out_in_the_order_in_which_they_went_in(self, subject: Subject) -> None:
        queue = subject.queue()
        sent = [b"%d" % number for number in range(500)]
        subject.put(queue, *sent)
        subject.commit(queue)
        assert take_all_data(queue) == sent

    @pytest.mark.parametrize("data", DATA.values(), ids=DATA)
    def test_bytes_of_all_kinds_come_back_as_they_are(self, subject: Subject, data: bytes) -> None:
        queue = subject.queue()
        subject.put(queue, data, b"next")
        subject.commit(queue)
        assert take_all_data(queue) == [data, b"next"]

    def test_an_item_keeps_its_add_time_and_the_expiry_its_client_gave(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.storage.put((queue,), b"a", 1, 2)
        subject.storage.put((queue,), b"b", ADD_MS, ADD_MS + 60_000)
        times = [(item.add_ms, item.expiry_ms) for item in take_all(queue)]
        assert times == [(1, 2), (ADD_MS, ADD_MS + 60_000)]

    def test_a_new_item_has_no_errors_and_no_xid(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        item = queue.take(False)
        assert (item.errors, item.xid) == (0, 0)

    def test_queues_are_apart(self, subject: Subject) -> None:
        queues = {b"q%d" % number: subject.queue(b"q%d" % number) for number in range(100)}
        for name, queue in queues.items():
            subject.put(queue, name + b"-1", name + b"-2")
        subject.commit(*queues.values())
        queues[b"q7"].clear()
        left = {name: take_all_data(queue) for name, queue in queues.items()}
        assert left == {name: [] if name == b"q7" else [name + b"-1", name + b"-2"] for name in queues}

    def test_one_put_to_many_queues_reaches_each(self, subject: Subject) -> None:
        queues = [subject.queue(name) for name in (b"a", b"a+x", b"a+y")]
        subject.storage.put(queues, b"item", ADD_MS, 0)
        queues[0].take(False)
        assert [take_all_data(queue) for queue in queues] == [[], [b"item"], [b"item"]]

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_a_queue_can_have_any_legal_name(self, subject: Subject, name: bytes) -> None:
        queue = subject.queue(name)
        subject.put(queue, name)
        subject.commit(queue)
        assert take_all_data(subject.queue(name)) == [name]

    def test_names_that_look_alike_are_different_queues(self, subject: Subject) -> None:
        names = [b"a", b"A", b"\xe9", b"\xc3\xa9", b"a+", b"a+b"]
        for name in names:
            subject.put(subject.queue(name), name)
        assert [take_all_data(subject.queue(name)) for name in names] == [[name] for name in names]

    def test_a_name_is_one_live_queue(self, subject: Subject) -> None:
        assert subject.queue(b"a") is subject.queue(b"a")

    # Looking and taking.

    def test_peek_shows_the_head_and_leaves_it(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        assert [queue.peek().data, queue.peek().data] == [b"a", b"a"]
        assert take_all_data(queue) == [b"a", b"b"]

    def test_an_empty_queue_has_no_head_to_look_at_take_or_fill_in(self, subject: Subject) -> None:
        queue = subject.queue()
        assert (queue.peek(), queue.take(False), queue.take(True), queue.fill()) == (None, None, None, None)
        assert (queue.items, queue.open_reads) == (0, 0)

    def test_the_counts_follow_puts_and_takes(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"four", b"five5", b"")
        assert (queue.items, queue.bytes) == (3, 9)
        queue.take(False)
        assert (queue.items, queue.bytes) == (2, 5)

    def test_no_more_is_in_memory_than_in_the_queue(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"four", b"five5")
        queue.peek()
        assert 0 < queue.mem_items <= queue.items
        assert 0 < queue.mem_bytes <= queue.bytes

    # Open reads.

    def test_an_open_read_carries_an_xid_and_is_open_until_it_is_confirmed(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        item = queue.take(True)
        assert item.xid > 0
        assert queue.is_open(item.xid)
        assert queue.confirm([item.xid]) == 1
        assert not queue.is_open(item.xid)

    def test_open_reads_are_not_counted_as_items(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"four", b"five5")
        queue.take(True)
        assert (queue.items, queue.bytes, queue.open_reads) == (1, 5, 1)

    def test_no_xid_is_given_twice(self, subject: Subject) -> None:
        queue = subject.queue()
        given = []
        for _ in range(50):
            subject.put(queue, b"a", b"b")
            first, second = queue.take(True), queue.take(True)
            given += [first.xid, second.xid]
            queue.confirm([second.xid])
            queue.put_back([first.xid], False)
            subject.commit(queue)
        assert len(set(given)) == len(given)

    def test_confirm_counts_those_that_were_open_and_ignores_others(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        first, second = queue.take(True).xid, queue.take(True).xid
        assert queue.confirm([first, first, second + 1000, -1, 0]) == 1
        assert queue.confirm([first]) == 0
        assert queue.is_open(second)

    def test_a_confirmed_item_never_comes_back(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        xid = queue.take(True).xid
        queue.confirm([xid])
        queue.put_back([xid], False)
        assert (queue.items, queue.peek()) == (0, None)

    def test_the_first_of_those_put_back_is_the_next_one_taken(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c", b"d")
        a, b, c = (queue.take(True).xid for _ in range(3))
        queue.put_back([c, a, b], False)
        assert take_all_data(queue) == [b"c", b"a", b"b", b"d"]

    def test_what_is_put_back_stands_before_what_was_looked_at(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        xid = queue.take(True).xid
        queue.peek()
        queue.put_back([xid], False)
        assert take_all_data(queue) == [b"a", b"b"]

    def test_what_is_put_back_counts_again_and_is_open_no_longer(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"four")
        xid = queue.take(True).xid
        queue.put_back([xid], False)
        assert (queue.items, queue.bytes, queue.open_reads) == (1, 4, 0)
        assert not queue.is_open(xid)

    def test_putting_back_what_is_not_open_changes_nothing(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        xid = queue.take(True).xid
        queue.put_back([xid + 1000, xid, xid], False)
        assert take_all_data(queue) == [b"a", b"b"]

    def test_an_item_that_comes_back_failed_has_one_error_more(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        for failed in (True, False, True):
            queue.put_back([queue.take(True).xid], failed)
        assert queue.peek().errors == 2

    # Clearing and deleting.

    def test_clear_drops_the_items_and_leaves_open_reads(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"open", b"again", b"c", b"d")
        first, second = queue.take(True).xid, queue.take(True).xid
        queue.clear()
        assert (queue.items, queue.bytes, queue.open_reads, queue.peek()) == (0, 0, 2, None)
        assert queue.confirm([first]) == 1
        queue.put_back([second], False)
        assert take_all_data(queue) == [b"again"]

    def test_a_cleared_queue_takes_items_again(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"old")
        queue.clear()
        subject.put(queue, b"new")
        subject.commit(queue)
        assert take_all_data(queue) == [b"new"]

    def test_a_deleted_queue_is_dead_at_once(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        xid = queue.take(True).xid
        subject.storage.delete(queue)
        assert queue.failure is not None
        calls = [
            queue.peek,
            lambda: queue.take(False),
            lambda: queue.take(True),
            lambda: queue.confirm([xid]),
            lambda: queue.put_back([xid], False),
            queue.clear,
            queue.fill,
            lambda: subject.put(queue, b"c"),
        ]
        for call in calls:
            with pytest.raises(QueueFailed):
                call()

    def test_a_deleted_name_is_a_new_empty_queue_at_once(self, subject: Subject) -> None:
        old = subject.queue()
        subject.put(old, b"old", b"open")
        old.take(True)
        subject.commit(old)
        subject.storage.delete(old)
        new = subject.queue()
        assert new is not old
        assert (new.items, new.bytes, new.open_reads, new.replayed_items) == (0, 0, 0, 0)
        subject.put(new, b"new")
        subject.commit(new)
        assert take_all_data(new) == [b"new"]

    def test_a_deleted_queue_has_nothing_to_commit(self, subject: Subject) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        subject.storage.delete(queue)
        assert all(queue not in group for group, _ in subject.storage.commit([queue]))

    def test_deleting_twice_leaves_the_new_queue_alone(self, subject: Subject) -> None:
        old = subject.queue()
        subject.storage.delete(old)
        new = subject.queue()
        subject.put(new, b"new")
        subject.commit(new)
        subject.storage.delete(old)
        assert subject.queue() is new
        assert take_all_data(new) == [b"new"]

    # Refusals.

    def test_a_put_to_a_dead_queue_among_others_reaches_none(self, subject: Subject) -> None:
        live, dead = subject.queue(b"live"), subject.queue(b"dead")
        subject.storage.delete(dead)
        with pytest.raises(QueueFailed):
            subject.storage.put([live, dead], b"item", ADD_MS, 0)
        assert (live.items, live.peek()) == (0, None)

    def test_an_item_too_large_to_hold_is_refused_before_anything_changes(self, subject: Subject) -> None:
        queue = subject.queue()
        with pytest.raises(ItemTooLarge):
            subject.storage.put([queue], HugeItem(), ADD_MS, 0)
        assert (queue.items, queue.peek()) == (0, None)

    # Histories.

    def test_any_history_is_that_of_a_plain_model(self, tmp_path: Path) -> None:
        folders = (tmp_path / f"history-{number}" for number in itertools.count())
        run_state_machine_as_test(
            lambda: HistoryMachine(self, next(folders)),
            settings=settings(
                max_examples=self.max_examples,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )


Seen = tuple[bytes, int, int]
"""An item as a client sees it: data, add time, expiry."""


class ModelQueue:
    """What a queue is: a list and a dict."""

    def __init__(self) -> None:
        self.items: list[Seen] = []
        self.opened: dict[int, Seen] = {}
        self.given: set[int] = set()

    def after_a_restart(self) -> list[Seen]:
        """The items then: open reads are back at the head, the lowest xid first."""
        return [self.opened[xid] for xid in sorted(self.opened)] + self.items


some_queue = st.sampled_from([b"a", b"a+b", b"\xff\x80"])
some_xids = st.lists(st.integers(0, 6), max_size=4)


class HistoryMachine(RuleBasedStateMachine):
    """Anything that may happen to a storage, on three queues.

    `possible` holds, for each queue, what a crash may leave: the contents at the last commit and after each
    change since. Between queues there is no order.
    """

    def __init__(self, contract: StorageContract, folder: Path) -> None:
        super().__init__()
        self.contract = contract
        self.folder = folder
        self.subject = Subject(contract, folder)
        self.model: dict[bytes, ModelQueue] = {}
        self.possible: dict[bytes, list[list[Seen]]] = {}
        self.touched: set[bytes] = set()
        self.next_ms = 1
        self.crashes = 0

    def teardown(self) -> None:
        self.subject.close()

    def at(self, name: bytes) -> tuple[IQueueStorage, ModelQueue]:
        return self.subject.queue(name), self.model.setdefault(name, ModelQueue())

    def changed(self, name: bytes) -> None:
        model = self.model.get(name, ModelQueue())
        self.possible.setdefault(name, [[]]).append(model.after_a_restart())
        self.touched.add(name)

    @rule(names=st.sets(some_queue, min_size=1), data=st.binary(max_size=12), expires=st.booleans())
    def put(self, names: set[bytes], data: bytes, expires: bool) -> None:
        self.next_ms += 1
        item = (data, self.next_ms, self.next_ms + 1000 if expires else 0)
        pairs = [self.at(name) for name in sorted(names)]
        self.subject.storage.put([queue for queue, _ in pairs], *item)
        for name, (_, model) in zip(sorted(names), pairs, strict=True):
            model.items.append(item)
            self.changed(name)

    @rule(name=some_queue, opened=st.booleans())
    def take(self, name: bytes, opened: bool) -> None:
        queue, model = self.at(name)
        item = queue.take(opened)
        assert seen(item) == (model.items[0] if model.items else None)
        if item is None:
            return
        taken = model.items.pop(0)
        if opened:
            assert item.xid not in model.given
            model.given.add(item.xid)
            model.opened[item.xid] = taken
        self.changed(name)

    @rule(name=some_queue)
    def peek(self, name: bytes) -> None:
        queue, model = self.at(name)
        assert seen(queue.peek()) == (model.items[0] if model.items else None)

    def some_of(self, model: ModelQueue, which: Sequence[int]) -> list[int]:
        """These of the open reads, and xids that never were, in the order drawn."""
        xids = [*sorted(model.opened), 10**9]
        return [xids[index % len(xids)] for index in which]

    @rule(name=some_queue, which=some_xids)
    def confirm(self, name: bytes, which: list[int]) -> None:
        queue, model = self.at(name)
        xids = self.some_of(model, which)
        were_open = [xid for xid in dict.fromkeys(xids) if xid in model.opened]
        assert queue.confirm(xids) == len(were_open)
        for xid in were_open:
            del model.opened[xid]
            self.changed(name)

    @rule(name=some_queue, which=some_xids, failed=st.booleans())
    def put_back(self, name: bytes, which: list[int], failed: bool) -> None:
        queue, model = self.at(name)
        xids = list(dict.fromkeys(self.some_of(model, which)))
        queue.put_back(xids, failed)
        for xid in reversed(xids):
            if xid in model.opened:
                model.items.insert(0, model.opened.pop(xid))
                self.changed(name)

    @rule(name=some_queue)
    def clear(self, name: bytes) -> None:
        queue, model = self.at(name)
        queue.clear()
        while model.items:
            model.items.pop(0)
            self.changed(name)

    @rule(name=some_queue)
    def delete(self, name: bytes) -> None:
        if name in self.model:
            self.subject.storage.delete(self.subject.queue(name))
            del self.model[name]
            self.changed(name)

    @rule()
    def commit(self) -> None:
        live = [name for name in sorted(self.touched) if name in self.model]
        self.subject.commit(*(self.subject.queue(name) for name in live))
        self.touched.clear()
        self.possible = {name: [model.after_a_restart()] for name, model in self.model.items()}

    @rule()
    def restart(self) -> None:
        if self.contract.is_durable:
            self.subject.close()
            self.start({name: [model.after_a_restart()] for name, model in self.model.items()})

    @rule()
    def crash(self) -> None:
        if self.contract.is_durable:
            self.crashes += 1
            left_behind = self.folder.with_name(f"{self.folder.name}-{self.crashes}")
            shutil.copytree(self.folder, left_behind)
            self.subject.close()
            self.folder = left_behind
            self.start(self.possible)

    def start(self, possible: dict[bytes, list[list[Seen]]]) -> None:
        """Another storage over the folder, in which each queue is one of the possible ones."""
        self.subject = Subject(self.contract, self.folder)
        self.model = {}
        self.possible = {}
        self.touched = set()
        for name in {*possible, *self.subject.loaded}:
            queue, model = self.at(name)
            assert (queue.open_reads, queue.replayed_items) == (0, queue.items)
            looked = look_through(queue)
            model.given = {item.xid for item in looked}
            model.items = [(item.data, item.add_ms, item.expiry_ms) for item in looked]
            assert model.items in possible.get(name, [[]])
            self.possible[name] = [model.items.copy()]
            self.touched.add(name)

    @invariant()
    def the_counts_are_right(self) -> None:
        for name, model in self.model.items():
            queue = self.subject.queue(name)
            size = sum(len(data) for data, _, _ in model.items)
            assert (queue.items, queue.bytes, queue.open_reads) == (len(model.items), size, len(model.opened))


def seen(item: Item | None) -> Seen | None:
    """An item as a client sees it."""
    return None if item is None else (item.data, item.add_ms, item.expiry_ms)
