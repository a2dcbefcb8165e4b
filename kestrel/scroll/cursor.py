"""A cursor over the records and the items of one scroll file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from kestrel.disk.reader import PART_BYTES, DamagedRecord, FilePart, FileReader, UnfinishedRecord
from kestrel.disk.repair import TORN_RECORD
from kestrel.disk.run_cursor import RUN_RECORDS, RunCursor
from kestrel.scroll.records import (
    BELOW_ALL_IDS,
    EXPIRING_PUT_FIRST_BYTE,
    LARGEST_ID,
    MAX_DATA_BYTES,
    PUT_BYTES,
    PUT_EXPIRING_BYTES,
    PUT_FIRST_BYTE,
    PUT_HEAD,
    WRITER_MAGIC,
    RecordCommand,
    ScrollFileRecord,
    Targets,
    decode_record,
)


class ScrollItem:
    """An item in a writer file.

    `offset` is that of the item's PUT, or of the TARGETS before it. `start` and `end` are the positions in the cursor's
    `data` where the PUT begins and ends.
    """

    def __init__(
        self, item_id: int, offset: int, data_bytes: int, targets: Targets | None, start: int, end: int
    ) -> None:
        self.item_id = item_id
        self.offset = offset
        self.data_bytes = data_bytes
        self.targets = targets
        self.start = start
        self.end = end


class ScrollCursor(RunCursor):
    """A cursor over the records of a writer or reader file (`RunCursor`).

    `start` is 0 for the whole file. `ids` has the id of each item, or for other records the id of the item before.
    `data_bytes` is the size of the data of all items of the run. `last_id` is the id of the item before `start`.

    A file that does not begin with `magic` has no records. It is unfinished if it ends within the magic, otherwise
    damaged. The end of the file is a proper end, also after zeros, which a writer that preallocates its files leaves.
    In a writer file, an id that is not higher than the one before it is damage. A TARGETS without its PUT at the end of
    the file is returned but counts as unfinished, so that a repair cuts it off and it cannot apply to a later PUT.
    """

    def __init__(
        self,
        reader: FileReader,
        magic: bytes,
        start: int = 0,
        stop: int | None = None,
        *,
        has_data: bool = True,
        part_bytes: int = PART_BYTES,
        last_id: int = BELOW_ALL_IDS,
    ) -> None:
        super().__init__(reader, start, stop, has_data=has_data, part_bytes=part_bytes)
        self._is_writer = magic == WRITER_MAGIC
        self._last_id = last_id
        self._pending: tuple[int, Targets] | None = None
        """Offset and targets of a TARGETS whose PUT has not been read yet, or None."""
        self._targets: dict[int, tuple[int, Targets]] = {}
        """Offset and targets of the TARGETS before each PUT of the run that has one, by the position of the PUT."""
        self._others: dict[int, ScrollFileRecord] = {}
        """The records of the run other than PUTs in their usual form, by their positions."""
        self.ids: list[int] = []
        self.data_bytes = 0
        if not start:
            self._begin(magic)

    def _begin(self, magic: bytes) -> None:
        begins_with = self._reader.read(0, len(magic))
        if begins_with == magic:
            self._offset = self.end.offset = len(magic)
        else:
            is_unfinished = magic.startswith(begins_with)
            problem = TORN_RECORD if is_unfinished else f"it does not begin with {magic.hex(' ')}"
            self._end_with(problem, is_unfinished=is_unfinished)

    def next(self, most: int = RUN_RECORDS) -> bool:
        """Read the next run of at most `most` records. Return False if there is none. Raise OSError."""
        has_run = super().next(most)
        if self._pending is not None:
            self.end.offset = self._pending[0]
            if (self.is_over or self._offset >= self._reader.size) and self.end.problem is None:
                self._end_with(TORN_RECORD, is_unfinished=True)
        return has_run

    def records(self) -> Iterator[tuple[int, ScrollFileRecord]]:
        """Yield the other records with their offsets. `has_data` must be set. Raise OSError."""
        while self.next():
            for position in self.starts:
                record = self._others.get(position) or decode_record(self.data, position)
                assert record is not None
                yield self.data_start + position, record

    @property
    def has_only_items(self) -> bool:
        """Whether the run of a writer file has only items, and all of them are for all readers."""
        return not self._others and not self._targets

    def items_of_run(self, first_id: int = BELOW_ALL_IDS) -> Iterator[ScrollItem]:
        """Yield the items with ids from `first_id` on. The file must be a writer file."""
        data, data_start, ids, others = self.data, self.data_start, self.ids, self._others
        bounds = [*self.starts, self.run_end]
        for place in range(bisect_left(ids, first_id), len(ids)):
            position = bounds[place]
            if position in others and others[position].command != RecordCommand.PUT:
                continue
            size: int = PUT_HEAD.unpack_from(data, position + 1)[0]
            offset, targets = self._targets.get(position) or (data_start + position, None)
            yield ScrollItem(ids[place], offset, size, targets, position, bounds[place + 1])

    def items(self, first_id: int = BELOW_ALL_IDS) -> Iterator[ScrollItem]:
        """Yield the other items of a writer file with ids from `first_id` on. Raise OSError."""
        while self.next():
            yield from self.items_of_run(first_id)

    def _collect(self, stop: int, most: int) -> int:
        self.ids, self._others, self._targets = [], {}, {}
        data, starts, ids, unpack_head = self.data, self.starts, self.ids, PUT_HEAD.unpack_from
        part, position = self._part, self.run_end
        length, bytes_to_end = len(data), part.length
        needed = data_bytes = size = item_id = 0
        last_id, pending = self._last_id, self._pending
        while position < stop and len(starts) < most:
            first = data[position]
            following: tuple[int, Targets] | None = None
            is_put = True
            if first in (PUT_FIRST_BYTE, EXPIRING_PUT_FIRST_BYTE):
                header = PUT_BYTES if first == PUT_FIRST_BYTE else PUT_EXPIRING_BYTES
                if position + header > length:
                    needed = header
                    break
                size, _, item_id = unpack_head(data, position + 1)
                after = position + header + size
                if not 0 <= size <= MAX_DATA_BYTES:
                    self._end_with(f"impossible size {size}")
                    break
                if after > length and (self._has_data or after > bytes_to_end):
                    needed = after - position
                    break
            else:
                record = self._decoded(data, position, part)
                if record is None:
                    break
                after = position + record.size
                if after > length:
                    needed = record.size
                    break
                is_put = record.command == RecordCommand.PUT
                if is_put:
                    item_id, size = record.item_id, record.data_size
                elif record.command == RecordCommand.TARGETS and (targets := record.targets) is not None:
                    following = self.data_start + position if pending is None else pending[0], targets
                self._others[position] = record
            if is_put:
                # In reader files any order is valid.
                if item_id > LARGEST_ID:
                    self._end_with("impossible id")
                    break
                if item_id <= last_id and self._is_writer:
                    self._end_with(f"the id {item_id} is not higher than the one before it")
                    break
                last_id = item_id
                data_bytes += size
                if pending is not None:
                    self._targets[position] = pending
            starts.append(position)
            ids.append(last_id)
            pending = following
            position = after
        self.run_end, self.data_bytes, self._last_id, self._pending = position, data_bytes, last_id, pending
        return needed

    def _decoded(self, data: bytes, position: int, part: FilePart) -> ScrollFileRecord | None:
        """Return a record other than a PUT in its usual form, or None if it is invalid or ends the file."""
        try:
            record = decode_record(data, position, part)
        except UnfinishedRecord:
            self._end_with(TORN_RECORD, is_unfinished=True)
        except DamagedRecord as damage:
            self._end_with(str(damage))
        else:
            if record is None:
                self.is_over = True
                self._check_zeros(self.data_start + position)
            return record
        return None

    def _check_zeros(self, start: int) -> None:
        for offset in range(start, self._reader.size, PART_BYTES):
            if self._reader.read(offset, PART_BYTES).strip(b"\0"):
                self._end_with("zeros before other bytes", is_unfinished=True)
                return
        self.end.is_closed = True
