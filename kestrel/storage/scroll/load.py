"""From the files of one scroll to its queues: survey, repair, and how much each reader has left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final, TypeAlias

from twisted.logger import Logger

from kestrel.config.model import QueueSettings
from kestrel.disk.append_file import AppendFile
from kestrel.disk.files import is_full
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
from kestrel.storage.scroll.files import copy_file, replace_file
from kestrel.storage.scroll.journal import ScrollJournal, Unsynced
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.scroll_resources import ScrollResources

log = Logger(__name__)

GAP_IDS: Final = 1 << 32
"""Where somebody reads by ids, a start gives the next item an id that is a multiple of it: more than were given since a
sync, and few enough for a thousand million starts."""

_first_id: Final = attrgetter("first_id")

SettingsOf: TypeAlias = Callable[[bytes], QueueSettings]


class ScrollLoader:
    """Loads the journals of one folder. May run in a thread."""

    def __init__(self, resources: ScrollResources, names: NameEncoding, now_ms: Callable[[], int]) -> None:
        self._resources = resources
        self._names = names
        self._now_ms = now_ms

    def load(
        self,
        files: ScrollFiles,
        settings_of: SettingsOf,
        known: Mapping[bytes, WriterFile] | None = None,
        *,
        is_copied: bool = False,
    ) -> ScrollJournal:
        """The journal of these files, with a queue for each reader that can be read.

        `known` is what is known of the writer files, by name, if it is more than a hint in the folder says. Where a
        sync of the files has failed none of them is written to again: they are copied first, unless `is_copied` says
        that this has been done. Raises OSError.
        """
        has_lost_a_sync = files.stem in self._resources.failed_syncs
        for temporary in files.temporary:
            self._resources.disk.erase(self._resources.path(temporary.file_name))
        if has_lost_a_sync and not is_copied:
            self._copy_all(files)
        if known is None:
            known = self._hint_of(files.stem)
        try:
            return self._load(files, settings_of, known, has_lost_a_sync)
        except Exception:
            if not known:
                raise
            # Whatever a hint says, it is never needed.
            self._resources.disk.erase(hint_path(self._resources.folder, files.stem))
            return self._load(files, settings_of, {}, has_lost_a_sync)

    def _copy_all(self, files: ScrollFiles) -> None:
        """Let what the system has of these files in its memory be on the medium, under the same names."""
        resources = self._resources
        for file_name in [*(writer.file_name for writer in files.writers), *files.readers.values()]:
            path = resources.path(file_name)
            size = resources.disk.length(path)
            resources.disk.rename(copy_file(resources.disk, path, size, resources.numbers.next()), path)
        resources.disk.sync_folder(resources.folder)

    def _hint_of(self, stem: bytes) -> Mapping[bytes, WriterFile]:
        try:
            with FileReader(self._resources.disk, hint_path(self._resources.folder, stem)) as reader:
                return decode_hint(reader.read(0, MAX_HINT_BYTES))
        except OSError:
            return {}

    def _load(
        self, files: ScrollFiles, settings_of: SettingsOf, known: Mapping[bytes, WriterFile], has_lost_a_sync: bool
    ) -> ScrollJournal:
        resources = self._resources
        journal = ScrollJournal(files.stem, resources, [], 1)
        journal.files = self._survey_all(journal, files.writers, known)
        states = self._read_states(journal, files)
        last_ids = [file.last_id for file in journal.files]
        # Ids are never given twice: if a reader is further than the last item, they go on behind it.
        last_ids += [state.last_id for state in states.values()]
        journal.next_id = max(last_ids, default=0) + 1
        gap_is_told = self._begin_behind_a_gap(journal, states)
        journal.safe_id = journal.last_id
        # Who wrote them may have ended before they were synced; what a failed sync has left was copied, and is.
        journal.unsynced = {} if has_lost_a_sync else {file: Unsynced(0, file.size) for file in journal.files}
        if has_lost_a_sync and journal.files:
            journal.files[-1].is_closed = True
        if OWN_READER in states:
            states.pop(DEFAULT_READER, None)
        for part, state in states.items():
            self._make_queue(journal, part, state, settings_of, is_written_anew=has_lost_a_sync)
        if not gap_is_told:
            for queue in journal.readers.values():
                queue.give_up_checkpoint()  # which tells of it as soon as there is room
        if has_lost_a_sync:
            resources.disk.sync_folder(resources.folder)  # or what was answered with an error might come back
            resources.failed_syncs.discard(journal.stem)
        return journal

    def _begin_behind_a_gap(self, journal: ScrollJournal, states: Mapping[bytes, ReaderState]) -> bool:
        """Skip ids where a client that reads by ids may have seen items that a power failure has removed.

        A reader that is unserved or whose file was damaged may have had such a client. The next start must find that
        this one has given ids, even if nothing else of them is left. False if a full disk does not take that now.
        """
        held = {part: state for part, state in states.items() if state.held is not None}
        first_id, next_id = journal.next_id, (journal.next_id // GAP_IDS + 1) * GAP_IDS
        if not (held or journal.unserved or journal.has_lost_states) or next_id >= LARGEST_ID:
            return True
        journal.next_id = next_id
        if journal.files:
            journal.files[-1].is_closed = True  # ids follow each other within a file
        try:
            for part, state in (held or states).items():
                state.done.add(first_id, next_id - 1)
                self._write_anew(reader_name(journal.stem, part), state)
            self._resources.disk.sync_folder(self._resources.folder)
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return True

    # Writer files.

    def _survey_all(
        self, journal: ScrollJournal, writers: list[ScrollFile], known: Mapping[bytes, WriterFile]
    ) -> list[WriterFile]:
        files = [self._survey(journal, writer, known) for writer in writers]
        unplaced = sorted((file for file in files if file is not None), key=_first_id)
        in_order: list[WriterFile] = []
        while unplaced:
            file = unplaced.pop(0)
            before = in_order[-1] if in_order else None
            if before is None or file.first_id > before.last_id:
                in_order.append(file)
                continue
            in_order.pop()
            unplaced += self._separated(journal, before, file)
            unplaced.sort(key=_first_id)
        return in_order

    def _separated(self, journal: ScrollJournal, before: WriterFile, file: WriterFile) -> list[WriterFile]:
        """Return two files whose ids overlap, without the overlap. `before` has the lower first id.

        If ids are missing in `before` where those of `file` begin, a damaged id is in `before`: at its end, or, if it
        was begun later than `file`, at its start. The same holds if the only id of `before` is the first one of `file`,
        and the next one follows there. Otherwise the first ids of `file` were given before and do not count.
        """
        if before.first_id == before.last_id == file.first_id:
            with journal.open_file(file.file_name) as reader:
                if has_second_id(reader, file):
                    return [*self._surveyed_behind(journal, before, file.last_id), file]
        with journal.open_file(before.file_name) as reader:
            jump = find_id_gap(reader, before, file.first_id)
        if jump is None:
            return [before, *self._surveyed_behind(journal, file, before.last_id)]
        if jump.items_before == 1 and before.number > file.number:
            return [*self._surveyed_behind(journal, before, file.last_id), file]
        end = ReadEnd(jump.offset, f"its ids from {jump.item_id} on belong behind those of {file.file_name!r}")
        self._repair(journal, before.file_name, end)
        return [*self._surveyed_behind(journal, before, 0), file]

    def _surveyed_behind(self, journal: ScrollJournal, file: WriterFile, floor_id: int) -> list[WriterFile]:
        """Survey a file again without the items up to that id. Empty if none is left: then the file is left alone."""
        again = WriterFile(file.file_name, file.number)
        with journal.open_file(file.file_name) as reader:
            index_writer_file(reader, again, floor_id)
        if floor_id:
            log.warn(
                "Scroll file {file!r}: its items up to id {last_id} do not count, because other files have those ids",
                file=file.file_name,
                last_id=floor_id,
            )
        return [again] if again.first_id else []

    def _survey(
        self, journal: ScrollJournal, writer: ScrollFile, known: Mapping[bytes, WriterFile]
    ) -> WriterFile | None:
        """What a writer file holds, once it is repaired; None for one without items, which is erased."""
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
                    "{file!r} does not begin as a writer file of a scroll: it is left alone, and the items that may be"
                    " in it are missing from all queues of that journal",
                    file=writer.file_name,
                )
                return None
            try:
                self._repair(journal, writer.file_name, end)
            except OSError as error:
                if not (end.is_unfinished and is_full(error)):
                    raise
                log.error(
                    "Scroll file {file!r}: {problem} at offset {offset}. There is no room to set the rest aside: it"
                    " stays in the file, to which nothing is appended any more. The items before it are served",
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
        """Copy the bad end of a file and cut the file there. `is_kept`: the caller replaces the file instead."""
        keep = quarantine if is_kept else repair
        repaired = keep(self._resources.disk, self._resources.folder, file_name, end, self._now_ms())
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
        """Return the state of each reader, by the part of its file name. A reader that cannot be read is unserved."""
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
                state.held = state.held._replace(head=first_id - 1)  # its items are gone: let the reader be told
        return states

    def _read_state(self, journal: ScrollJournal, file_name: bytes) -> ReaderState:
        """Return the state in a reader file, which then holds exactly that, with checksums. Raises OSError.

        The records behind the first bad one do not count: the reader gets the items again that they said were done.
        """
        with journal.open_file(file_name) as reader:
            state, end = refuse_impossible_ids(*read_state(reader), journal.last_written_id)
        if end.problem is not None:
            self._repair(journal, file_name, end, is_kept=True)
            # A crash leaves an unfinished end that no sync had reached. A client's hold is synced before it counts.
            journal.has_lost_states |= not end.is_unfinished
        if end.problem is not None or not state.is_checked:
            self._write_anew(file_name, state)
        return state

    def _write_anew(self, file_name: bytes, state: ReaderState) -> None:
        resources = self._resources
        path, number = resources.path(file_name), resources.numbers.next()
        replace_file(resources.disk, path, encode_state(state), number, is_synced=True)

    def load_unserved(self, journal: ScrollJournal, reader: bytes, settings_of: SettingsOf) -> None:
        """Try a reader again that could not be read. Raises OSError."""
        part = journal.unserved[reader]
        file_name = reader_name(journal.stem, part)
        state = self._read_state(journal, file_name)
        journal.skip_ids_to(state.done.last)
        self._make_queue(journal, part, state, settings_of, is_written_anew=False)
        if reader in journal.readers:
            del journal.unserved[reader]

    def name_of(self, stem: bytes, part: bytes) -> bytes | None:
        """The name of the queue that has that reader file; None if that is not known."""
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
        is_written_anew: bool,
    ) -> None:
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
        if is_written_anew or not resources.disk.is_there(path):
            try:
                self._write_anew(file_name, state)
            except OSError as error:  # without a file it begins at the first item as well
                if is_written_anew or not is_full(error):
                    raise
        file = AppendFile(resources.disk, path, resources.disk.length(path) if resources.disk.is_there(path) else 0)
        file.synced_size = file.size if is_written_anew else 0
        counts = count_remaining(reader, state.done.head, state.done.ranges(), journal.files, journal.open_file)
        queue = ScrollQueue(name, reader, settings_of(name), journal, state, file, counts)
        queue.skip_items_of_others()
        journal.readers[reader] = queue
