"""Held items can be read again under the same ids, whatever happens to their queue and to the server.

Random changes are made to a parent and a child, and to a model of them. After each step, and after each crash of the
process or the machine, the readable items are compared with the model. After a crash before a reply, the state before
the change and the state after it are both allowed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed, StorageRefused
from kestrel.item import Item
from kestrel.storage.interfaces import IItemRanges
from kestrel.storage.scroll.queue import ScrollQueue
from tests.sample import examples
from tests.scroll.storages import Opener, Scrolls
from tests.torture.damage import quick_folder

NAMES: Final = (b"work", b"work+x")
BOTH: Final = (0, 1)
"""The indexes of the queues."""

ITEM_BYTES: Final = 40


def data_of(items: Iterable[Item]) -> list[bytes]:
    return [item.data.strip() for item in items]


class QueueModel:
    """A model of a queue: the items that were put, those that are finished, and the index of the first held item."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.done: set[bytes] = set()
        self.hold_start: int | None = None

    @property
    def head(self) -> int:
        """The index of the first item that is not finished."""
        return next((index for index, data in enumerate(self.log) if data not in self.done), len(self.log))


class CheckedStorage:
    """A storage that fails and restarts, and the models of its queues.

    `safe` has the acknowledged state of each queue, `now` its current state, and `pending` the state that becomes safe
    when the pending commit ends.
    """

    def __init__(self, folder: Path, sync_ms: int | None) -> None:
        self.sync_ms = sync_ms
        self.settings = QueueSettings(
            sync_journal_ms=sync_ms, default_journal_size_bytes=200, max_memory_size_bytes=3 * ITEM_BYTES
        )
        self.start = Opener(folder)
        self.scrolls: Scrolls = self.start(settings=self.settings)
        self.now, self.safe = [QueueModel(), QueueModel()], [QueueModel(), QueueModel()]
        self.pending: list[QueueModel] | None = None
        self._outcomes: list[Any] = []
        self._expected_outcomes = 0
        self.numbers = iter(range(1 << 20))
        self.data_by_id: list[dict[int, bytes]] = [{}, {}]
        """The item of each id that was seen since the current hold began."""
        self.queues = [self._open(index) for index in BOTH]
        self.commit()
        self.settle()

    def _open(self, index: int) -> ScrollQueue:
        for _ in range(5):
            with suppress(QueueFailed):
                return self.scrolls.queue(NAMES[index])
            self.scrolls.threads.run_all()
        return self.scrolls.queue(NAMES[index])

    def ranges(self, index: int) -> IItemRanges:
        return IItemRanges(self.queues[index])

    # Changes.

    def put(self, indexes: Sequence[int]) -> None:
        data = b"%d" % next(self.numbers)
        with suppress(StorageRefused):
            self.scrolls.put([self.queues[index] for index in indexes], data.ljust(ITEM_BYTES))
            for index in indexes:
                self.now[index].log.append(data)

    def get(self, index: int, opened: bool) -> None:
        queue = self.queues[index]
        if not queue.has_head and (filling := queue.fill()) is not None:
            filling.addErrback(lambda _: None)
            return
        item = queue.take(opened)
        if item is not None and not opened:
            self.now[index].done.add(item.data.strip())

    def end_reads(self, index: int, how: int) -> None:
        """Abort or confirm the open reads, depending on `how`. For odd numbers the first one stays open."""
        queue = self.queues[index]
        xids = queue.open_xids()[how % 2 :]
        if how < 3:
            queue.put_back(xids, how == 1)
        else:
            self.now[index].done.update(data_of([queue._open[xid] for xid in xids]))
            queue.confirm(xids)

    def clear(self, index: int) -> None:
        queue, model = self.queues[index], self.now[index]
        opened = set(data_of(queue._open.values()))
        queue.clear()
        model.done |= set(model.log) - opened

    def hold(self, index: int) -> None:
        model = self.now[index]
        if model.hold_start is None:
            self.ranges(index).hold(b"spark")
            model.hold_start = model.head

    def end_hold(self, index: int) -> None:
        self.ranges(index).end_hold()
        self.now[index].hold_start = None

    def release(self, index: int, quarters: int) -> None:
        """Release that many quarters of the held items."""
        model = self.now[index]
        if model.hold_start is None:
            return
        pairs = self.read(index)
        count = len(pairs) * quarters // 4
        self.ranges(index).release(pairs[count][0] if count < len(pairs) else self.ranges(index).next_id)
        end = min(model.hold_start + count, len(self.safe[index].log))
        model.hold_start = max(model.hold_start, end)
        model.done.update(model.log[: model.hold_start])

    def commit(self) -> None:
        self.settle()
        self.pending = deepcopy(self.now)
        pairs = self.scrolls.storage.commit(self.queues)
        self._outcomes, self._expected_outcomes = [], len(pairs)
        for _, outcome in pairs:
            outcome.addBoth(self._outcomes.append)
        self._note_outcomes()

    def settle(self) -> None:
        """Let all pending work end."""
        self.scrolls.threads.run_all()
        self._note_outcomes()
        if self.pending is not None:
            self.scrolls.clock.advance(5)
            self.scrolls.threads.run_all()
            self._note_outcomes()
        assert self.pending is None

    def _note_outcomes(self) -> None:
        if self.pending is None or len(self._outcomes) < self._expected_outcomes:
            return
        if all(outcome is None for outcome in self._outcomes):
            self.safe = self.pending
        self.pending = None
        self.reopen_failed()

    def reopen_failed(self) -> None:
        """Open failed queues again, which returns them to the safe state."""
        if any(queue.failure is not None for queue in self.queues):
            self.scrolls.disk.mend()
            self.scrolls.disk.room = None
            self.queues = [self._open(index) for index in BOTH]
            self.now, self.pending = deepcopy(self.safe), None

    # Restarts and crashes.

    def restart(self) -> None:
        self.mend()
        self.commit()
        self.settle()
        self.scrolls = self.start.again(self.scrolls)
        self._begin(self.safe, self.safe)

    def kill(self) -> None:
        self.scrolls = self.start.crashed(self.scrolls)
        self._begin(self.safe, self.pending or self.safe)

    def power_failure(self) -> None:
        self.scrolls = self.start.power_failed(self.scrolls)
        begin = self._begin if self.sync_ms == 0 else self._begin_after_losses
        begin(self.safe, self.pending or self.safe)

    def _begin(self, before: list[QueueModel], after: list[QueueModel]) -> None:
        """Compare the queues after a start with the states before and after the pending commit."""
        self.queues = [self._open(index) for index in BOTH]
        self._found([self._state_between(index, before[index], after[index]) for index in BOTH])

    def _found(self, models: list[QueueModel]) -> None:
        self.now, self.safe, self.pending = models, deepcopy(models), None

    def _state_between(self, index: int, least: QueueModel, most: QueueModel) -> QueueModel:
        model = deepcopy(most)
        has_hold = self.ranges(index).reader is not None
        assert has_hold in (least.hold_start is not None, most.hold_start is not None)
        if has_hold:
            data = [data for _, data in self.read(index)]
            starts = [each.hold_start for each in (most, least) if each.hold_start is not None]
            logs = [most.log[:end] for end in range(len(most.log), len(least.log) - 1, -1)]
            model.hold_start, model.log = next((start, log) for start in starts for log in logs if log[start:] == data)
        else:
            model.hold_start = None
        present = data_of(self.scrolls.look_through(self.queues[index]))
        assert present == [data for data in model.log if data in present]
        if not has_hold:  # the items in the queue show how much of the log was kept
            kept = [end for end, data in enumerate(model.log, 1) if data in present]
            model.log = model.log[: max(len(least.log), *kept, 0)]
        model.done = set(model.log) - set(present)
        assert model.done >= least.done & set(model.log)
        return model

    def _begin_after_losses(self, before: list[QueueModel], after: list[QueueModel]) -> None:
        """Acknowledged changes may be lost, but only the last ones. Other items keep their ids."""
        self.queues = [self._open(index) for index in BOTH]
        found = []
        for index in BOTH:
            model = QueueModel()
            present = data_of(self.scrolls.look_through(self.queues[index]))
            model.log = present
            if self.ranges(index).reader is not None:
                model.log = [data for _, data in self.read(index)]
                model.hold_start = 0
                for held in (each[index] for each in (before, after) if each[index].hold_start is not None):
                    items = held.log[held.hold_start :]
                    lost = [data for data in items if data not in model.log]
                    assert items[len(items) - len(lost) :] == lost, "an item was lost before a later one"
                assert set(present) <= set(model.log)
            model.done = set(model.log) - set(present)
            found.append(model)
        self._found(found)

    # Faults and time.

    def fail(self, operation: str) -> None:
        self.scrolls.disk.fail(operation, errno.EIO, times=1, torn_bytes=7)

    def fill_disk(self) -> None:
        self.scrolls.disk.room = 0

    def mend(self) -> None:
        self.scrolls.disk.mend()
        self.scrolls.disk.room = None
        self.scrolls.clock.advance(5)
        self.settle()

    def let_time_pass(self) -> None:
        self.scrolls.clock.advance(10)

    def run_a_job(self) -> None:
        if len(self.scrolls.threads):
            self.scrolls.threads.run_one()
        self._note_outcomes()

    # Checks.

    def read(self, index: int) -> list[tuple[int, bytes]]:
        """Read all held items in small parts, and check that each id still has the same item."""
        ranges, pairs = self.ranges(index), []
        first_id, end_id = ranges.first_id, ranges.next_id
        assert first_id <= end_id
        while part := self._read(index, first_id, end_id):
            pairs += [(item_id, item.data.strip()) for item_id, item in part]
            first_id = pairs[-1][0] + 1
        for item_id, data in pairs:
            assert self.data_by_id[index].setdefault(item_id, data) == data, "two items had the same id"
        return pairs

    def _read(self, index: int, first_id: int, end_id: int) -> list[Any]:
        """Read some items. Only the job of this read runs."""
        results: list[Any] = []
        self.ranges(index).read_range(first_id, end_id, 2 * ITEM_BYTES).addBoth(results.append)
        self.scrolls.threads.run_newest()
        return list(results[0])

    def check(self) -> None:
        """Exactly the held items can be read, at once and in batches."""
        for index in BOTH:
            model, ranges = self.now[index], self.ranges(index)
            assert (ranges.reader is not None) == (model.hold_start is not None)
            if model.hold_start is None:
                self.data_by_id[index].clear()  # ids are valid only during a hold
                continue
            pairs = self.read(index)
            assert [data for _, data in pairs] == self.safe[index].log[model.hold_start :]
            begin_id, batched = ranges.first_id, []
            while (end_id := ranges.end_of(begin_id, 2)) > begin_id:
                batch = [pair for pair in pairs if begin_id <= pair[0] < end_id]
                assert len(batch) <= 2
                batched += batch
                begin_id = end_id
            assert batched == pairs


indexes = st.sampled_from(BOTH)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from([(0, 1), (0,), (1,)])),
    st.tuples(st.just("put"), st.just((0, 1))),
    st.tuples(st.just("get"), indexes, st.booleans()),
    st.tuples(st.just("end_reads"), indexes, st.integers(0, 5)),
    st.tuples(st.just("clear"), indexes),
    st.tuples(st.just("hold"), indexes),
    st.tuples(st.just("hold"), indexes),
    st.tuples(st.just("end_hold"), indexes),
    st.tuples(st.just("release"), indexes, st.integers(0, 4)),
    st.tuples(st.sampled_from(["commit", "commit", "run_a_job", "let_time_pass", "settle"])),
    st.tuples(st.sampled_from(["restart", "kill", "power_failure", "mend", "fill_disk"])),
    st.tuples(st.just("fail"), st.sampled_from(["write", "sync", "rename"])),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([0, None, 500]), st.lists(STEPS, min_size=10, max_size=40))
def test_held_items_keep_their_ids_through_any_history(sync_ms: int | None, steps: list[tuple[Any, ...]]) -> None:
    with quick_folder() as folder:
        storage = CheckedStorage(folder, sync_ms)
        try:
            for name, *arguments in steps:
                getattr(storage, name)(*arguments)
                storage.reopen_failed()
                storage.check()
        finally:
            storage.start.stop_all()
