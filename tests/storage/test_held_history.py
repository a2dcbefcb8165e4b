"""Whatever becomes of a queue and of its server, who reads it by ids finds all that was kept, under the same ids.

A history of a parent and a child is lived through, with a model beside it that knows what must be readable: after each
step, and after each death of the process or the machine. Where a death came before an answer, what a start finds must
be what was before or what would have been after.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed, StorageRefused
from kestrel.storage.interfaces import IItemRanges
from kestrel.storage.scroll.queue import ScrollQueue
from tests.sample import examples
from tests.scroll.storages import Opener, Scrolls

NAMES: Final = (b"work", b"work+x")
BOTH: Final = (0, 1)

ITEM_BYTES: Final = 40


class Kept:
    """One queue of the model: all items that were put to it, which of them are done, and from where on it is held."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.done: set[bytes] = set()
        self.start: int | None = None

    @property
    def head(self) -> int:
        """Where in the log the first item stands that is not done."""
        return next((place for place, data in enumerate(self.log) if data not in self.done), len(self.log))

    def release(self, data: set[bytes], end: int) -> None:
        """These are done, and the hold goes on there."""
        self.done |= data
        if self.start is not None:
            self.start = max(self.start, end)


class World:
    """A storage that lives and dies, and the model of it. `safe` is what was promised, `now` what was done since."""

    def __init__(self, folder: Path, sync_ms: int | None) -> None:
        self.sync_ms = sync_ms
        self.settings = QueueSettings(
            sync_journal_ms=sync_ms, default_journal_size_bytes=200, max_memory_size_bytes=3 * ITEM_BYTES
        )
        self.start = Opener(folder)
        self.scrolls: Scrolls = self.start(settings=self.settings)
        self.now, self.safe = [Kept(), Kept()], [Kept(), Kept()]
        self.written: list[Kept] | None = None
        """What is safe when the commit that is under way ends."""
        self._outcomes: list[Any] = []
        self._expected = 0
        self.numbers = iter(range(1 << 20))
        self.data_of: list[dict[int, bytes]] = [{}, {}]
        """What each id was seen to mean since somebody has the hold."""
        self.queues = [self._open(place) for place in BOTH]
        self.commit()
        self.settle()

    def _open(self, place: int) -> ScrollQueue:
        for _ in range(5):
            with suppress(QueueFailed):
                return self.scrolls.queue(NAMES[place])
            self.scrolls.threads.run_all()
        return self.scrolls.queue(NAMES[place])

    def ranges(self, place: int) -> IItemRanges:
        return IItemRanges(self.queues[place])

    # What is done.

    def put(self, to: Sequence[int]) -> None:
        data = b"%d" % next(self.numbers)
        with suppress(StorageRefused):
            self.scrolls.put([self.queues[place] for place in to], data.ljust(ITEM_BYTES))
            for place in to:
                self.now[place].log.append(data)

    def get(self, place: int, opened: bool) -> None:
        queue = self.queues[place]
        if not queue.has_head and (filling := queue.fill()) is not None:
            filling.addErrback(lambda _: None)
            return
        item = queue.take(opened)
        if item is not None and not opened:
            self.now[place].done.add(item.data.strip())

    def end_reads(self, place: int, how: int) -> None:
        queue = self.queues[place]
        xids = queue.open_xids()[how % 2 :]
        if how < 3:
            queue.put_back(xids, how == 1)
        else:
            self.now[place].done |= {queue._open[xid].data.strip() for xid in xids}
            queue.confirm(xids)

    def clear(self, place: int) -> None:
        queue, kept = self.queues[place], self.now[place]
        opened = {item.data.strip() for item in queue._open.values()}
        queue.clear()
        kept.done |= set(kept.log) - opened

    def hold(self, place: int) -> None:
        kept = self.now[place]
        if kept.start is None:
            self.ranges(place).hold(b"spark")
            kept.start = kept.head

    def end_hold(self, place: int) -> None:
        self.ranges(place).end_hold()
        self.now[place].start = None

    def release(self, place: int, share: int) -> None:
        kept = self.now[place]
        if kept.start is None:
            return
        pairs = self.read(place)
        count = len(pairs) * share // 4
        end_id = pairs[count][0] if count < len(pairs) else self.ranges(place).next_id
        self.ranges(place).release(end_id)
        start = max(kept.start, min(kept.start + count, len(self.safe[place].log)))
        kept.release(set(kept.log[:start]), start)

    def commit(self) -> None:
        self.settle()
        self.written = deepcopy(self.now)
        pairs = self.scrolls.storage.commit(self.queues)
        self._outcomes, self._expected = [], len(pairs)
        for _, outcome in pairs:
            outcome.addBoth(self._outcomes.append)
        self._look()

    def settle(self) -> None:
        """Let all that is under way come to its end."""
        self.scrolls.threads.run_all()
        self._look()
        if self.written is not None:
            self.scrolls.clock.advance(5)
            self.scrolls.threads.run_all()
            self._look()
        assert self.written is None

    def _look(self) -> None:
        if self.written is None or len(self._outcomes) < self._expected:
            return
        if all(outcome is None for outcome in self._outcomes):
            self.safe = self.written
        self.written = None
        self.look_alive()

    def look_alive(self) -> None:
        """What died is opened anew, at what is safe."""
        if any(queue.failure is not None for queue in self.queues):
            self.scrolls.disk.mend()
            self.scrolls.disk.room = None
            self.queues = [self._open(place) for place in BOTH]
            self.now, self.written = deepcopy(self.safe), None

    # Deaths.

    def restart(self) -> None:
        self.mend()
        self.commit()
        self.settle()
        self.scrolls = self.start.again(self.scrolls)
        self._begin(self.safe, self.safe)

    def kill(self) -> None:
        self.scrolls = self.start.crashed(self.scrolls)
        self._begin(self.safe, self.written or self.safe)

    def power_failure(self) -> None:
        self.scrolls = self.start.power_failed(self.scrolls)
        if self.sync_ms == 0:
            self._begin(self.safe, self.written or self.safe)
        else:
            self._begin_after_losses(self.safe, self.written or self.safe)

    def _begin(self, before: list[Kept], after: list[Kept]) -> None:
        self.queues = [self._open(place) for place in BOTH]
        found: list[Kept] = []
        for place in BOTH:
            kept, least = deepcopy(after[place]), before[place]
            has_hold = self.ranges(place).reader is not None
            assert has_hold in (least.start is not None, kept.start is not None)
            if not has_hold:
                kept.start = None
            else:
                data = [data for _, data in self.read(place)]
                starts = [each.start for each in (kept, least) if each.start is not None]
                logs = [each.log for each in (kept, least)]
                kept.start, kept.log = next(
                    (start, log) for start in starts for log in self._prefixes(*logs) if log[start:] == data
                )
            found.append(self._as_it_is(place, kept, least))
        self.now, self.safe, self.written = found, deepcopy(found), None

    @staticmethod
    def _prefixes(longer: list[bytes], least: list[bytes]) -> list[list[bytes]]:
        return [longer[:end] for end in range(len(longer), len(least) - 1, -1)]

    def _as_it_is(self, place: int, kept: Kept, least: Kept) -> Kept:
        """What is done is what has left the queue; what a hold does not tell of the log, the queue does."""
        queue = self.queues[place]
        there = [item.data.strip() for item in self.scrolls.look_through(queue)]
        assert there == [data for data in kept.log if data in there]
        if kept.start is None:
            places = [spot for spot, data in enumerate(kept.log) if data in there]
            kept.log = kept.log[: max(len(least.log), places[-1] + 1 if places else 0)]
        kept.done = set(kept.log) - set(there)
        assert kept.done >= least.done & set(kept.log)
        return kept

    def _begin_after_losses(self, before: list[Kept], after: list[Kept]) -> None:
        """Not all that was answered was safe; what is found has the ids that it had, and what is lost is the last."""
        self.queues = [self._open(place) for place in BOTH]
        found = []
        for place in BOTH:
            kept = Kept()
            there = [item.data.strip() for item in self.scrolls.look_through(self.queues[place])]
            kept.log = there
            if self.ranges(place).reader is not None:
                kept.log = [data for _, data in self.read(place)]
                kept.start = 0
                held = [each[place] for each in (before, after) if each[place].start is not None]
                for end in [each.log[each.start :] for each in held]:
                    lost = [data for data in end if data not in kept.log]
                    assert end[len(end) - len(lost) :] == lost, "the last of them, or none"
                assert set(there) <= set(kept.log)
            kept.done = set(kept.log) - set(there)
            found.append(kept)
        self.now, self.safe, self.written = found, deepcopy(found), None

    # Faults.

    def fail(self, operation: str, error: int) -> None:
        self.scrolls.disk.fail(operation, error, times=1, torn_bytes=7)

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
        self._look()

    # What must be so.

    def read(self, place: int, max_bytes: int = 2 * ITEM_BYTES) -> list[tuple[int, bytes]]:
        """All that can be read of a queue, a few items at a time; each id means what it always meant."""
        ranges, pairs = self.ranges(place), []
        first_id, end_id = ranges.first_id, ranges.next_id
        assert first_id <= end_id
        while part := self._read(place, first_id, end_id, max_bytes):
            pairs += [(item_id, item.data.strip()) for item_id, item in part]
            first_id = pairs[-1][0] + 1
        for item_id, data in pairs:
            assert self.data_of[place].setdefault(item_id, data) == data, "an id was given twice"
        return pairs

    def _read(self, place: int, *span: int) -> list[Any]:
        """With nothing else done meanwhile: the newest job is the reading."""
        results: list[Any] = []
        self.ranges(place).read_range(*span).addBoth(results.append)
        self.scrolls.threads.run_newest()
        return list(results[0])

    def check(self) -> None:
        """What is held can be read, all of it and nothing else, in one go and in batches."""
        for place in BOTH:
            kept, ranges = self.now[place], self.ranges(place)
            assert (ranges.reader is not None) == (kept.start is not None)
            if kept.start is None:
                self.data_of[place].clear()  # who has noted ids is told that nothing is kept
                continue
            pairs = self.read(place)
            assert [data for _, data in pairs] == self.safe[place].log[kept.start :]
            begin_id, batched = ranges.first_id, []
            while (end_id := ranges.end_of(begin_id, 2)) > begin_id:
                batch = [pair for pair in pairs if begin_id <= pair[0] < end_id]
                assert len(batch) <= 2
                batched += batch
                begin_id = end_id
            assert batched == pairs


places = st.sampled_from(BOTH)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from([(0, 1), (0,), (1,)])),
    st.tuples(st.just("put"), st.just((0, 1))),
    st.tuples(st.just("get"), places, st.booleans()),
    st.tuples(st.just("end_reads"), places, st.integers(0, 5)),
    st.tuples(st.just("clear"), places),
    st.tuples(st.just("hold"), places),
    st.tuples(st.just("hold"), places),
    st.tuples(st.just("end_hold"), places),
    st.tuples(st.just("release"), places, st.integers(0, 4)),
    st.tuples(st.sampled_from(["commit", "commit", "run_a_job", "let_time_pass", "settle"])),
    st.tuples(st.sampled_from(["restart", "kill", "power_failure", "mend", "fill_disk"])),
    st.tuples(st.just("fail"), st.sampled_from(["write", "sync", "rename"]), st.just(errno.EIO)),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([0, None, 500]), st.lists(STEPS, min_size=10, max_size=40))
def test_what_is_held_is_read_again_and_again_under_its_ids(sync_ms: int | None, steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        world = World(Path(folder), sync_ms)
        try:
            for name, *arguments in steps:
                getattr(world, name)(*arguments)
                world.look_alive()
                world.check()
        finally:
            world.start.stop_all()
