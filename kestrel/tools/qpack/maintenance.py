"""Verification and packing of the queues of one folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kestrel.disk.file_numbers import FileNumbers
from kestrel.tools.files.folder import Folder, check_owner, chosen_queues, locked_folder
from kestrel.tools.files.found_files import Found, FoundJournal, FoundScroll
from kestrel.tools.files.scroll_contents import ScrollContents
from kestrel.tools.files.snapshot_files import FileReadResult
from kestrel.tools.files.summary import damage_json, damage_sentence
from kestrel.tools.formatting import count, show_path, show_queue, spell_queue
from kestrel.tools.qpack.outcomes import (
    OutcomeRemark,
    QueueOutcome,
    failed_outcome,
    scroll_outcome,
    state_of,
    unpacked_outcome,
)
from kestrel.tools.qpack.packing import JournalInspection, pack_queue
from kestrel.tools.tool_runner import ToolFailed, explain_os_error


class FolderMaintenance:
    """Maintenance of the queues of one folder, one after the other. A problem of one queue is reported as its outcome.

    `tool` is the name of the command, and `look` its option to verify only, for messages. `now_ms` is the add time of
    items whose record has none. A large queue shows its progress if `may_show_progress`.
    """

    def __init__(
        self, tool: str, look: str, folder: Folder, now_ms: int, *, may_show_progress: bool = True
    ) -> None:
        self._tool = tool
        self._look = look
        self._folder = folder
        self._now_ms = now_ms
        self._may_show_progress = may_show_progress

    def verify(self, names: Sequence[bytes]) -> Iterator[QueueOutcome]:
        """Verify the named queues, or all, without changes. Raise `ToolFailed` or OSError if the folder is unusable."""
        chosen = self._folder.chosen(names)
        for found in chosen:
            yield from self.verify_found(found)
        yield from self.verify_rest(has_queues=bool(chosen), is_all=not names)

    def verify_found(self, found: Found) -> Iterator[QueueOutcome]:
        """Read a journal or scroll without changing it, and yield an outcome for each selected queue.

        A scroll with damaged files yields one more outcome. A scroll that cannot be read yields a single failed
        outcome.
        """
        if isinstance(found, FoundJournal):
            yield self._journal(found.queue, None)
        elif isinstance(found, FoundScroll):
            yield from self._verify_scroll(found)

    def verify_rest(self, *, has_queues: bool, is_all: bool) -> Iterator[QueueOutcome]:
        """Report files of the folder that belong to no queue. Raise OSError."""
        strays = self._folder.strays()
        if not has_queues and (archived := strays.archived()) is not None:
            yield QueueOutcome((OutcomeRemark(f"{show_path(self._folder.path)}: {archived}", is_complaint=False),))
        if is_all:
            for sentence in strays.unread():
                yield QueueOutcome((OutcomeRemark(sentence),))

    def pack(self, names: Sequence[bytes]) -> Iterator[QueueOutcome]:
        """Pack the named queues, or all. The folder stays locked until the last outcome is yielded.

        Raise `ToolFailed` if the folder cannot be changed: a server uses it, or its files belong to another user.
        """
        folder = self._folder
        found_journals = [found for found in folder.chosen(names) if isinstance(found, FoundJournal)]
        if not found_journals:
            yield from self._pack(names, None)
            return
        files = [file for found in found_journals for file in folder.journals()[found.queue].live_files()]
        check_owner(folder.path, (file.file_name for file in files), self._tool)
        with locked_folder(folder.disk, folder.path, f"stop it first, or check the files with {self._look}"):
            self._folder.hold()
            numbers = FileNumbers(lambda: self._now_ms)
            numbers.mark_used(number for files in self._folder.journals().values() for number in files.numbers())
            yield from self._pack(names, numbers)

    def _pack(self, names: Sequence[bytes], numbers: FileNumbers | None) -> Iterator[QueueOutcome]:
        chosen = self._folder.chosen(names)
        for found in chosen:
            if isinstance(found, FoundJournal):
                yield self._journal(found.queue, numbers)
            elif isinstance(found, FoundScroll):
                yield from self._report_unpacked_scroll(found)
        yield from self.verify_rest(has_queues=bool(chosen), is_all=False)

    def _journal(self, name: bytes, numbers: FileNumbers | None) -> QueueOutcome:
        """Pack a journal, with `numbers` for its new files, or verify it if `numbers` is None."""
        folder = self._folder
        try:
            with folder.open_journal(name) as journal:
                before = JournalInspection(journal, self._now_ms, may_show_progress=self._may_show_progress)
            after = before
            state = state_of(before.files)
            if numbers is not None:
                state = "unchanged" if before.is_packed else "packed"
                if not before.is_packed:
                    files = folder.journals()[name]
                    after = pack_queue(
                        folder.disk,
                        folder.path,
                        files,
                        before,
                        numbers,
                        self._now_ms,
                        may_show_progress=self._may_show_progress,
                    )
        except OSError as error:
            sentence = "cannot be read" if numbers is None else "not packed, and nothing is lost"
            return failed_outcome(spell_queue(name), f"queue {show_queue(name)}: {sentence}: {explain_os_error(error)}")
        except ToolFailed as error:
            return failed_outcome(spell_queue(name), str(error))
        return QueueOutcome(
            (*_damage(before.files, is_repaired=numbers is not None), *_repair(name, before, after)),
            _as_text(name, state, before, after),
            _as_json(name, state, before, after),
        )

    def _verify_scroll(self, found: FoundScroll) -> Iterator[QueueOutcome]:
        try:
            with self._folder.open_scroll(found) as scroll:
                contents = ScrollContents(scroll, self._now_ms, may_show_progress=self._may_show_progress)
                contents.read()
        except OSError as error:
            yield failed_outcome(None, f"{found.shown}: cannot be read: {explain_os_error(error)}")
            return
        except ToolFailed as error:
            yield failed_outcome(None, str(error))
            return
        for read in contents.queues:
            yield scroll_outcome(contents, read)
        if damage := tuple(_damage(contents.files, is_repaired=False)):
            yield QueueOutcome(damage)

    def _report_unpacked_scroll(self, found: FoundScroll) -> Iterator[QueueOutcome]:
        try:
            queues = chosen_queues(self._folder.scroll(found), found)
        except OSError as error:
            yield failed_outcome(None, f"{found.shown}: cannot be read: {explain_os_error(error)}")
        except ToolFailed as error:
            yield failed_outcome(None, str(error))
        else:
            yield from map(unpacked_outcome, queues)


def _damage(files: Sequence[FileReadResult], *, is_repaired: bool) -> Iterator[OutcomeRemark]:
    """Yield a remark for each file with a problem. An unfinished record or repaired damage is not a complaint."""
    for read in files:
        if read.end.problem is not None:
            was_repaired = "; what could not be read is in .kestrel/damaged/" if is_repaired else ""
            yield OutcomeRemark(damage_sentence(read) + was_repaired, read.is_damaged and not is_repaired)


def _repair(name: bytes, before: JournalInspection, after: JournalInspection) -> Iterator[OutcomeRemark]:
    """Yield a remark if the repair of a damaged or missing file changed which items the queue holds."""
    if after.digest != before.digest:
        yield OutcomeRemark(
            f"queue {show_queue(name)}: the repair of its files changed its items, as at a server's start:"
            f" {before.items} -> {count(after.items, 'item')}; some may be placeholders of lost items, or come again",
            is_complaint=False,
        )


def _as_json(name: bytes, state: str, before: JournalInspection, after: JournalInspection) -> dict[str, Any]:
    return {
        "queue": spell_queue(name),
        "state": state,
        "items": after.items,
        "files": len(before.files),
        "bytes_before": before.bytes,
        "bytes_after": after.packed_bytes,
        "damage": damage_json(before.files),
    }


def _as_text(name: bytes, state: str, before: JournalInspection, after: JournalInspection) -> str:
    files = f"{count(len(before.files), 'file')}, {before.bytes} -> {count(after.packed_bytes, 'byte')}"
    return f"{show_queue(name)}: {state}: {files}, {count(after.items, 'item')}"
