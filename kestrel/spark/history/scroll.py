"""What became of each item of one scroll, for each queue that reads it. No Spark here.

The reader files come first, and then the items, one by one: no more is in memory than what the readers are done with.
Their files do not say when that was, nor whether an item was open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kestrel.scroll.name_encoding import OWN_READER
from kestrel.scroll.reader_file import ReaderState, ReaderStateBuilder
from kestrel.scroll.records import Targets
from kestrel.spark.history.journal import QUEUED

DONE: Final = "done"


class ScrollItemState(NamedTuple):
    """An item, as one of the queues has it."""

    queue: str
    state: str
    errors: int
    position: int | None
    """Its place in the queue after a restart, if it is still there."""


class _Reader:
    """One queue."""

    def __init__(self, queue: str, state: ReaderState) -> None:
        self.queue = queue
        self.state = state
        self.left = 0


class ScrollHistory:
    """One scroll: tell it what the reader files say (`said_by`), then show it each item in order (`item`)."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._said: dict[bytes, tuple[str, ReaderStateBuilder]] = {}
        self._readers: Mapping[bytes, _Reader] | None = None
        self._last_id = 0

    def said_by(self, reader: bytes, queue: str) -> ReaderStateBuilder:
        """What the file of that reader says so far; it is that queue's. To be added to."""
        return self._said.setdefault(reader, (queue, ReaderStateBuilder()))[1]

    def item(
        self, item_id: int, errors: int, targets: Targets | None, *, is_archived: bool
    ) -> Iterator[ScrollItemState]:
        """What each queue that it was put to has of it; nothing, if its id is not higher than all before it.

        Where there is no reader file, the one queue is done with nothing, but with what is archived: that nobody needs.
        """
        if item_id <= self._last_id:
            return
        self._last_id = item_id
        if self._readers is None:
            self._readers = self._all_readers()
        for name, reader in self._readers.items():
            if targets is not None and not targets.has(name):
                continue
            is_done = item_id in reader.state.done or (is_archived and not self._said)
            count = reader.state.errors.get(item_id, errors)
            yield ScrollItemState(reader.queue, DONE if is_done else QUEUED, count, None if is_done else reader.left)
            reader.left += not is_done

    def _all_readers(self) -> Mapping[bytes, _Reader]:
        if not self._said:
            return {OWN_READER: _Reader(self._journal, ReaderState())}
        states = {name: (queue, said.state()) for name, (queue, said) in self._said.items()}
        return {name: _Reader(queue, state) for name, (queue, state) in states.items() if not state.is_deleted}
