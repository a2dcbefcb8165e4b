"""Replay of one scroll into the histories of its items for each of its queues, independent of Spark.

The reader files come first, then the items one by one, so memory holds only the ids that readers are done with. Reader
files record neither times nor open reads.
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
    """The state of an item in one of the queues."""

    queue: str
    state: str
    errors: int
    position: int | None
    """Position in the queue after a restart, if the item is still there."""


class _Reader:
    """A queue of the scroll."""

    def __init__(self, queue: str, state: ReaderState) -> None:
        self.queue = queue
        self.state = state
        self.left = 0


class ScrollHistory:
    """The replay of one scroll. Pass the reader files to `said_by` first, then each item in order to `item`."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._said: dict[bytes, tuple[str, ReaderStateBuilder]] = {}
        self._readers: Mapping[bytes, _Reader] | None = None
        self._last_id = 0

    def said_by(self, reader: bytes, queue: str) -> ReaderStateBuilder:
        """Return the state of a reader file of that queue, for adding its records."""
        return self._said.setdefault(reader, (queue, ReaderStateBuilder()))[1]

    def item(
        self, item_id: int, errors: int, targets: Targets | None, *, is_archived: bool
    ) -> Iterator[ScrollItemState]:
        """Yield the item's state in each queue that it was put to; nothing unless its id is higher than all before.

        Without a reader file, the only queue is done with archived items, which no reader needs, but not with others.
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
