"""Loading of one scroll: index and repair its files, and count the remaining items of each reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final, TypeAlias

from twisted.logger import Logger

from kestrel.config.model import QueueSettings
from kestrel.disk.files import AppendFile, is_full
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd, quarantine, repair
from kestrel.scroll.fileset import ScrollFile, ScrollFiles, reader_name
from kestrel.scroll.hints import MAX_HINT_BYTES, decode_hint, hint_path
from kestrel.scroll.name_encoding import DEFAULT_READER, OWN_READER, NameEncoding, QueueLocation, queue_name_of
from kestrel.scroll.reader_file import ReaderState, encode_state, read_state, refuse_impossible_ids
from kestrel.scroll.records import LARGEST_ID
from kestrel.scroll.remaining import count_remaining
from kestrel.scroll.writer_file import WriterFile
from kestrel.scroll.writer_index import HintMismatch, check_index, find_id_gap, has_second_id, index_writer_file
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.scroll.files import copy_file, replace_file
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue

log = Logger(__name__)

GAP_IDS: Final = 1 << 32
"""Unit of id gaps. If a client reads by ids, the first new item after a start gets a multiple of it as its id.

It is larger than the number of items between two syncs, and small enough for 10^9 starts.
"""

_first_id: Final = attrgetter("first_id")

SettingsOf: TypeAlias = Callable[[bytes], QueueSettings]


class ScrollLoader:
    """A loader for the journals of one folder. Its methods may run in a thread."""

    def __init__(self, resources: FolderResources, names: NameEncoding) -> None:
        self._resources = resources
        self._names = names

    def load(
        self,
        files: ScrollFiles,
        settings_of: SettingsOf,
        known: Mapping[bytes, WriterFile] | None = None,
        *,
        is_copied: bool = False,
    ) -> ScrollJournal:
        """Return the journal of `files`, with a queue for each reader whose file can be read. Raises OSError.

        `known` has indexes of the writer files by name; None means to use the hint in the folder. If a sync of the
        files has failed, all files are first replaced by copies, unless `is_copied` is true.
        """
        has_lost_a_sync = files.stem in self._resources.failed_syncs
        for temporary in files.temporary:
            self._resources.disk.erase(self._resources.path(temporary.file_name))
        if has_lost_a_sync and not is_copied:
            self._copy_all(files)
        if known is None:
            known = self._read_hint(files.stem)
        try:
            return self._load(files, settings_of, known, has_lost_a_sync)
        except Exception:
            if not known:
                raise
            # Hints are optional, so a wrong hint must not prevent the load.
            self._resources.disk.erase(hint_path(self._resources.folder, files.stem))
            return self._load(files, settings_of, {}, has_lost_a_sync)

    def _copy_all(self, files: ScrollFiles) -> None:
        """Replace all files with synced copies of the content that the operating system has in memory."""
        resources = self._resources
        for file_name in [*(writer.file_name for writer in files.writers), *files.readers.values()]:
            path = resources.path(file_name)
            size = resources.disk.length(path)
            resources.disk.rename(copy_file(resources.disk, path, size, resources.numbers.next()), path)
        resources.disk.sync_folder(resources.folder)

    def _read_hint(self, stem: bytes) -> Mapping[bytes, WriterFile]:
        """Return the indexes from the hint of a journal, by file name; empty if there is no hint."""
        try:
            with FileReader(self._resources.disk, hint_path(self._resources.folder, stem)) as reader:
                return decode_hint(reader.read(0, MAX_HINT_BYTES))
        except OSError:
            return {}

    def _load(
        self, files: ScrollFiles, settings_of: SettingsOf, known: Mapping[bytes, WriterFile], has_lost_a_sync: bool
    ) -> ScrollJournal:
        """Load a journal. Raises OSError, or `HintMismatch` if `known` differs from the files."""
        resources = self._resources
        journal = ScrollJournal(files.stem, resources, [], 1)
        journal.files = self._index_all(journal, files.writers, known)
        states = self._read_states(journal, files)
        last_ids = [file.last_id for file in journal.files]
        # Ids are never reused, so they continue after the furthest reader.
        last_ids += [state.last_id for state in states.values()]
        journal.next_id = max(last_ids, default=0) + 1
        is_gap_recorded = self._leave_id_gap(journal, states)
        journal.safe_id = journal.last_id
        # The previous process may have ended before a sync. Copies made after a failed sync are synced.
        if not has_lost_a_sync:
            for file in journal.files:
                journal.unsynced[file] = AppendFile(resources.disk, resources.path(file.file_name), file.size)
        elif journal.files:
            journal.files[-1].is_closed = True
        if OWN_READER in states:
            states.pop(DEFAULT_READER, None)
        for part, state in states.items():
            self._make_queue(journal, part, state, settings_of, must_rewrite=has_lost_a_sync)
        if not is_gap_recorded:
            for queue in journal.readers.values():
                queue.give_up_checkpoint()  # so that a later checkpoint records the gap
        if has_lost_a_sync:
            # Without this sync, a power failure could restore changes that were reported as failed.
            resources.disk.sync_folder(resources.folder)
            resources.failed_syncs.discard(journal.stem)
        return journal

    def _leave_id_gap(self, journal: ScrollJournal, states: Mapping[bytes, ReaderState]) -> bool:
        """Skip ids if a client that reads by ids may have seen items that a power failure has removed.

        This applies if a reader has a hold, or may have had one because it is unserved or its file was damaged. The gap
        is recorded in the reader files, so that the next start leaves another one. Return False if the disk is too full
        to record it. Raises OSError.
        """
        held = {part: state for part, state in states.items() if state.held is not None}
        first_id, next_id = journal.next_id, (journal.next_id // GAP_IDS + 1) * GAP_IDS
        if not (held or journal.unserved or journal.has_lost_states) or next_id >= LARGEST_ID:
            return True
        journal.next_id = next_id
        if journal.files:
            journal.files[-1].is_closed = True  # a file has no gaps between ids
        try:
            for part, state in (held or states).items():
                state.done.add(first_id, next_id - 1)
                self._replace_reader_file(reader_name(journal.stem, part), state)
            self._resources.disk.sync_folder(self._resources.folder)
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return True

    # Writer files.

    def _index_all(
        self, journal: ScrollJournal, writers: list[ScrollFile], known: Mapping[bytes, WriterFile]
    ) -> list[WriterFile]:
        """Index and repair the writer files. Return those with items in the order of their ids, without overlaps."""
        files = [self._index_file(journal, writer, known) for writer in writers]
        unplaced = sorted((file for file in files if file is not None), key=_first_id)
        in_order: list[WriterFile] = []
        while unplaced:
            file = unplaced.pop(0)
            before = in_order[-1] if in_order else None
            if before is None or file.first_id > before.last_id:
                in_order.append(file)
                continue
            in_order.pop()
            unplaced += self._resolve_overlap(journal, before, file)
            unplaced.sort(key=_first_id)
        return in_order

    def _resolve_overlap(self, journal: ScrollJournal, before: WriterFile, file: WriterFile) -> list[WriterFile]:
        """Resolve an overlap between the ids of two files and return the files. `before` has the lower first id.

        If `before` lacks ids where the ids of `file` begin, `before` has a damaged id. The damage is at its start if
        its only item before the gap is in a file begun after `file`, and at its end otherwise. A single id that is also
        the first of several in `file` is damaged too. In all other cases the first ids of `file` are duplicates and are
        ignored.
        """
        if before.first_id == before.last_id == file.first_id:
            with journal.open_file(file.file_name) as reader:
                if has_second_id(reader, file):
                    return [*self._index_items_after(journal, before, file.last_id), file]
        with journal.open_file(before.file_name) as reader:
            gap = find_id_gap(reader, before, file.first_id)
        if gap is None:
            return [before, *self._index_items_after(journal, file, before.last_id)]
        if gap.items_before == 1 and before.number > file.number:
            return [*self._index_items_after(journal, before, file.last_id), file]
        end = ReadEnd(gap.offset, f"its ids from {gap.item_id} on belong after those of {file.file_name!r}")
        self._repair(journal, before.file_name, end)
        return [*self._index_items_after(journal, before, 0), file]

    def _index_items_after(self, journal: ScrollJournal, file: WriterFile, floor_id: int) -> list[WriterFile]:
        """Index a file again, and ignore items with ids up to `floor_id`. Return the new index in a list, or an empty
        list.

        The list is empty if no item remains. The file itself is not changed or erased.
        """
        again = WriterFile(file.file_name, file.number)
        with journal.open_file(file.file_name) as reader:
            index_writer_file(reader, again, floor_id)
        if floor_id:
            log.warn(
                "Scroll file {file!r}: its items up to id {last_id} are ignored, because other files have these ids",
                file=file.file_name,
                last_id=floor_id,
            )
        return [again] if again.first_id else []

    def _index_file(
        self, journal: ScrollJournal, writer: ScrollFile, known: Mapping[bytes, WriterFile]
    ) -> WriterFile | None:
        """Index a writer file and repair its end. Return None for a file without items, which is erased.

        A file that does not begin as a writer file is left alone, and the result is None. Raises OSError, or
        `HintMismatch` if the file differs from its index in `known`.
        """
        hint = known.get(writer.file_name)
        file = hint or WriterFile(writer.file_name, writer.number)
        with journal.open_file(writer.file_name) as reader:
            if hint is not None:
                check_index(reader, hint)
            end = index_writer_file(reader, file)
        if end.problem is not None:
            if hint is not None:
                raise HintMismatch
            if not end.offset and not end.is_unfinished:
                log.error(
                    "Scroll file {file!r} does not begin as a writer file: it is left alone, and its items are missing"
                    " from all queues of the journal",
                    file=writer.file_name,
                )
                return None
            try:
                self._repair(journal, writer.file_name, end)
            except OSError as error:
                if not (end.is_unfinished and is_full(error)):
                    raise
                log.error(
                    "Scroll file {file!r}: {problem} at offset {offset}. The disk is too full to set the rest aside: it"
                    " stays in the file, nothing more is appended, and the items before it are served",
                    file=writer.file_name,
                    problem=end.problem,
                    offset=end.offset,
                )
                file.is_closed = True
                journal.unrepaired.add(writer.file_name)
                return file if file.first_id else None
        if not file.first_id:
            self._resources.disk.erase(self._resources.path(writer.file_name))
            return None
        return file

    def _repair(self, journal: ScrollJournal, file_name: bytes, end: ReadEnd, *, is_kept: bool = False) -> None:
        """Copy the bad end of a file and truncate the file there. If `is_kept` is true, do not change the file."""
        keep = quarantine if is_kept else repair
        repaired = keep(self._resources.disk, self._resources.folder, file_name, end, self._resources.now_ms())
        journal.repaired_bytes += repaired.size
        log.warn(
            "Scroll file {file!r}: {problem} at offset {offset}; the {size} bytes from there on were set aside in"
            " {copy!r}, and the bytes before them were kept",
            file=file_name,
            problem=end.problem,
            offset=end.offset,
            size=repaired.size,
            copy=repaired.copy,
        )

    # Reader files.

    def _read_states(self, journal: ScrollJournal, files: ScrollFiles) -> dict[bytes, ReaderState]:
        """Return the state of each reader, by the reader part of its file name.

        A reader whose file cannot be read is added to `journal.unserved`.
        """
        states: dict[bytes, ReaderState] = {}
        for part, file_name in files.readers.items():
            try:
                state = self._read_state(journal, file_name)
            except OSError as error:
                log.error("Reader file {file!r} cannot be read: {reason}", file=file_name, reason=error.strerror)
                journal.unserved[part or OWN_READER] = part
                continue
            if state.is_deleted:
                journal.deletion_marks.append(file_name)
                continue
            states[part] = state
        if not files.readers and journal.files:
            states[DEFAULT_READER] = ReaderState()
        first_id = journal.files[0].first_id if journal.files else 1
        for state in states.values():
            state.done.add(1, first_id - 1)
            if state.held is not None and state.held.head < first_id - 1 and first_id % GAP_IDS:
                # The items are gone. With them released, the client is told that they are lost.
                state.held = state.held._replace(head=first_id - 1)
        return states

    def _read_state(self, journal: ScrollJournal, file_name: bytes) -> ReaderState:
        """Return the state in a reader file. Raises OSError.

        Records after the first bad one are ignored, so the reader gets some items again. A file that is damaged or has
        no checksums is rewritten.
        """
        with journal.open_file(file_name) as reader:
            state, end = refuse_impossible_ids(*read_state(reader), journal.last_written_id)
        if end.problem is not None:
            self._repair(journal, file_name, end, is_kept=True)
            # An unfinished end was never synced, so no client's hold can be lost in it.
            journal.has_lost_states |= not end.is_unfinished
        if end.problem is not None or not state.is_checked:
            self._replace_reader_file(file_name, state)
        return state

    def _replace_reader_file(self, file_name: bytes, state: ReaderState) -> None:
        """Replace a reader file with a synced file that contains `state`. Raises OSError."""
        resources = self._resources
        path, number = resources.path(file_name), resources.numbers.next()
        replace_file(resources.disk, path, encode_state(state), number, is_synced=True)

    def load_unserved(self, journal: ScrollJournal, reader: bytes, settings_of: SettingsOf) -> None:
        """Load a reader whose file could not be read before, and serve it. Raises OSError."""
        part = journal.unserved[reader]
        file_name = reader_name(journal.stem, part)
        state = self._read_state(journal, file_name)
        journal.skip_ids_to(state.done.last)
        self._make_queue(journal, part, state, settings_of, must_rewrite=False)
        if reader in journal.readers:
            del journal.unserved[reader]

    def name_of(self, stem: bytes, part: bytes) -> bytes | None:
        """Return the name of the queue whose reader file has this stem and reader part, or None if it is unknown."""
        try:
            parent = self._names.name_of(stem)
            if parent is None or self._names.is_own(part):
                return parent
            child = self._names.name_of(part)
        except OSError:
            return None
        return None if child is None else queue_name_of(QueueLocation(parent, child))

    def _make_queue(
        self,
        journal: ScrollJournal,
        part: bytes,
        state: ReaderState,
        settings_of: SettingsOf,
        *,
        must_rewrite: bool,
    ) -> None:
        """Add a queue with the given state to `journal`, or add the reader to `unserved` if its name is unknown.

        `must_rewrite` requires a rewrite of the reader file. Raises OSError.
        """
        resources = self._resources
        reader = part or OWN_READER
        name = self.name_of(journal.stem, part)
        if name is None:
            file_name = reader_name(journal.stem, part)
            log.error("Reader file {file!r} is left alone: the name of its queue is not known", file=file_name)
            journal.unserved[reader] = part
            return
        file_name = reader_name(journal.stem, part)
        path = resources.path(file_name)
        if must_rewrite or not resources.disk.is_there(path):
            try:
                self._replace_reader_file(file_name, state)
            except OSError as error:
                # On a full disk no file is needed yet: a reader without one also begins at the first item.
                if must_rewrite or not is_full(error):
                    raise
        file = AppendFile(resources.disk, path, resources.disk.length(path) if resources.disk.is_there(path) else 0)
        file.synced_size = file.size if must_rewrite else 0
        counts = count_remaining(reader, state.done.head, state.done.ranges(), journal.files, journal.open_file)
        queue = ScrollQueue(name, reader, settings_of(name), journal, state, file, counts)
        queue.skip_items_of_others()
        journal.readers[reader] = queue
