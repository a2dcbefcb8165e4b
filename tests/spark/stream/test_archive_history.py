"""Random histories of an archive and of its stream: each item that stays is delivered exactly once."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.scroll.handwritten import WRITER, put
from tests.spark.stream.tailing import Stream, data

QUEUES = st.sampled_from(["work", "mail", "work2"])
NUMBERS = st.integers(1, 30)
SHARES = st.floats(0, 1)


class ArchiveHistory(RuleBasedStateMachine):
    """A server and an operator, and a query whose sink keeps its batches."""

    @initialize(most=st.integers(1, 4))
    def begin(self, most: int) -> None:
        """Create an archive without files."""
        self.scratch = TemporaryDirectory()
        folder = Path(self.scratch.name)
        self.archive = folder / "archive"
        self.archive.mkdir()
        self.index = folder / "audit.index"
        self.put = 0
        self.held: dict[str, list[int]] = {}
        """The items of each file that was ever there."""
        self.gone: set[int] = set()
        """Items of erased files."""
        self.batches: list[list[int]] = []
        self.stream = Stream(self.archive, index=self.index, maxFiles=str(most), ignoreMissingFiles="true")
        self.stream.plan()

    def teardown(self) -> None:
        if hasattr(self, "scratch"):
            self.finish()
            self.scratch.cleanup()

    def _write(self, name: str, items: list[int]) -> None:
        """Add a file as a server that copies does, under a temporary name first. So the file gets a new number each
        time.
        """
        copy = self.archive / f"{name}~~"
        copy.write_bytes(WRITER + b"".join(put(item, b"%d" % item) for item in items))
        self.maybe_look()
        copy.rename(self.archive / name)

    def maybe_look(self) -> None:
        """Check the archive between two steps of the server. Incomplete files are ignored."""
        self.stream.reader.latestOffset(self.stream.offsets[-1], self.stream.reader.getDefaultReadLimit())

    def _some(self, count: int) -> list[int]:
        self.put += count
        return [*range(self.put - count + 1, self.put + 1)]

    # Events of the archive.

    @rule(queue=QUEUES, number=NUMBERS, count=st.integers(0, 3))
    def a_file_comes(self, queue: str, number: int, count: int) -> None:
        """Add a file with any number, not always above the others."""
        name = f"archive~{queue}.{number}"
        if name not in self.held:
            self.held[name] = self._some(count)
            self._write(name, self.held[name])

    def _there(self) -> list[str]:
        return sorted(path.name for path in self.archive.iterdir())

    @precondition(lambda self: self._there())
    @rule(share=SHARES)
    def a_file_comes_again(self, share: float) -> None:
        """Archive a file again, because the server crashed before it erased its own."""
        names = self._there()
        name = names[int(share * (len(names) - 1))]
        self._write(name, self.held[name])

    @precondition(lambda self: self._there())
    @rule(share=SHARES, is_away=st.booleans())
    def a_file_comes_again_and_has_grown(self, share: float, is_away: bool) -> None:
        """Archive a file again with more items, because the server crashed before it erased its own, and continued it.

        After a power failure it may move its own file a second time.
        """
        names = self._there()
        name = names[int(share * (len(names) - 1))]
        more = self._some(2)
        if is_away:
            back = Path(self.scratch.name) / name
            (self.archive / name).rename(back)
            self.maybe_look()
            with back.open("ab") as file:
                file.write(b"".join(put(item, b"%d" % item) for item in more))
            back.rename(self.archive / name)
        self.held[name] = [*self.held[name], *more]
        if not is_away:
            self._write(name, self.held[name])

    @precondition(lambda self: self._there())
    @rule(share=SHARES, mode=st.sampled_from([0o600, 0o640]))
    def somebody_touches_a_file(self, share: float, mode: int) -> None:
        """Change the modification times."""
        names = self._there()
        path = self.archive / names[int(share * (len(names) - 1))]
        path.chmod(mode)
        path.touch()

    @precondition(lambda self: self._there())
    @rule(share=SHARES)
    def somebody_erases_a_file(self, share: float) -> None:
        """Erase a file that may have been read or not."""
        names = self._there()
        name = names[int(share * (len(names) - 1))]
        (self.archive / name).unlink()
        self.gone.update(self.held[name])

    # Events of the query.

    def _deliver(self, number: int) -> None:
        """Write the batch that ends at that offset. It replaces an earlier attempt."""
        del self.batches[number - 1 :]
        self.batches.append([int(item) for item in data(self.stream.batch(number))])

    @rule()
    def a_batch_is_done(self) -> None:
        if self.stream.plan():
            self._deliver(len(self.stream.offsets) - 1)

    @rule(is_planned=st.booleans())
    def the_process_ends_in_a_batch(self, is_planned: bool) -> None:
        """Crash before or after the offset is stored."""
        if is_planned and self.stream.plan():
            self.stream.restart()
            self._deliver(len(self.stream.offsets) - 1)
            return
        self.maybe_look()
        self.stream.restart()

    @rule(torn=st.integers(0, 60))
    def the_process_ends_while_it_writes_its_index(self, torn: int) -> None:
        line = b'["here", "/archive", "archive~work.31", 0, 100, "0123456789abcdef"]'
        with self.index.open("ab") as file:
            file.write(line[:torn])
        self.stream.restart()

    @rule(share=SHARES, most=st.integers(1, 4))
    def the_checkpoint_is_put_back(self, share: float, most: int) -> None:
        """Go back to an earlier checkpoint. Later batches are read again, without erased files; the last of them may
        differ.
        """
        number = int(share * (len(self.stream.offsets) - 1))
        before = self.batches
        again = [[*batch] for batch in before[:number]]
        for end in range(number + 1, len(self.stream.offsets)):
            again.append([int(item) for item in data(self.stream.batch(end))])
            assert set(again[-1]) <= set(before[end - 1])
            assert set(before[end - 1]) - set(again[-1]) <= self.gone
        del self.stream.offsets[number + 1 :]
        self.batches = again[:number]
        self.stream.restart(maxFiles=str(most))

    # Invariants.

    def _told(self) -> list[int]:
        return [item for batch in self.batches for item in batch]

    @invariant()
    def nothing_comes_twice(self) -> None:
        if hasattr(self, "batches"):
            told = self._told()
            assert len(told) == len(set(told))

    def finish(self) -> None:
        """When no more events happen, all files are delivered."""
        while self.stream.plan():
            self._deliver(len(self.stream.offsets) - 1)
        self.nothing_comes_twice()
        there = {item for name in self._there() for item in self.held[name]}
        assert there - self.gone <= set(self._told()) <= set(range(1, self.put + 1))


def test_each_item_that_stays_is_delivered_exactly_once() -> None:
    run_state_machine_as_test(ArchiveHistory, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))
