"""Verification and packing of the queues of a folder, and the command line of kestrel-qpack."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from kestrel.disk.files import Disk
from kestrel.disk.folders import FileNumbers
from kestrel.server.process import raise_file_limit
from kestrel.tools.arguments import add_queue_option, argument, flag, make_parser, path_name
from kestrel.tools.files.folder import (
    Folder,
    Found,
    FoundJournal,
    FoundScroll,
    check_owner,
    chosen_queues,
    locked_folder,
)
from kestrel.tools.files.scroll_contents import ScrollContents, ScrollQueueContents
from kestrel.tools.files.snapshot_files import FileReadResult, damage_json, damage_sentence
from kestrel.tools.formatting import count, show_path, show_queue, spell_queue
from kestrel.tools.packing import JournalInspection, pack_queue
from kestrel.tools.progress import ByteProgress, Progress
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, BadUsage, Output, ToolFailed, explain_os_error, print_error, run

TOOL: Final = "kestrel-qpack"

_DESCRIPTION: Final = """\
Replace all files of each queue by one that holds only its items. Stop the server first. Files are repaired as at a
server start. The new file is compared with the old ones, item by item, before it replaces them. An interruption loses
nothing: start the server, or run this again. Scrolls can be verified but are not packed: the server erases their files
as soon as no queue needs them."""

_EPILOG: Final = """\
examples:
  kestrel-qpack --verify /var/spool/kestrel       only read, also while a server is running
  kestrel-qpack /var/spool/kestrel
  kestrel-qpack --queue work --json /var/spool/kestrel

exit status: 0; 1 if --verify finds damage (an unfinished last record is not damage), or a queue could not be read or
packed; 2 if the command line is invalid; 73 if the folder cannot be written; 75 if a server uses it; 130 after
Ctrl-C."""

_NOT_PACKED: Final = "a scroll is not packed: the server erases its files as soon as no queue needs them"


def main(argv: Sequence[str] | None = None, disk: Disk | None = None) -> int:
    """Run the command and return its exit status."""
    return run(TOOL, lambda: _pack_or_verify(_parser().parse_args(argv), disk or Disk()))


def _parser() -> ArgumentParser:
    return make_parser(
        TOOL,
        _DESCRIPTION,
        _EPILOG,
        argument("folder", metavar="FOLDER", type=path_name, help="the folder of the journals or scrolls"),
        add_queue_option,
        flag("--verify", "--dry-run", "read all files, change nothing, and report their state"),
        flag("--json", "print JSON, one object per queue"),
    )


def _pack_or_verify(arguments: Namespace, disk: Disk) -> int:
    path = os.fsencode(arguments.folder).rstrip(b"/") or b"/"
    output = Output()
    raise_file_limit()  # all files of a queue are open at once
    if not os.path.isdir(path):
        raise BadUsage(f"there is no folder {show_path(path)}: name the folder of the queues")
    upkeep = FolderMaintenance(TOOL, "--verify", Folder(disk, path), int(time.time() * 1000))
    status = EX_OK
    for outcome in (upkeep.verify if arguments.verify else upkeep.pack)(arguments.queues):
        if arguments.json and outcome.fields is not None:
            output.object(outcome.fields)
        elif not arguments.json and outcome.line is not None:
            output.line(outcome.line)
        output.flush()
        for remark in outcome.remarks:
            print_error(TOOL, remark.sentence)
        if outcome.has_complaint:
            status = EX_FOUND
    return status


class OutcomeRemark(NamedTuple):
    """A sentence for standard error, in addition to the report."""

    sentence: str
    is_complaint: bool = True
    """True for damage or a failure, which changes the exit status."""


class QueueOutcome(NamedTuple):
    """The result for one queue, or for the folder."""

    remarks: tuple[OutcomeRemark, ...] = ()
    line: str | None = None
    """Line of the text report; None if there are only remarks."""
    fields: dict[str, Any] | None = None
    """Object of the JSON report; None if there are only remarks."""

    @property
    def has_complaint(self) -> bool:
        """True if a remark changes the exit status."""
        return any(remark.is_complaint for remark in self.remarks)


def failed_outcome(queue: str | None, sentence: str, state: str = "failed") -> QueueOutcome:
    """Return the result for a queue that could not be read or packed.

    `queue` is None for a failure of a whole scroll or folder.
    """
    return QueueOutcome((OutcomeRemark(sentence),), None, {"queue": queue, "state": state, "reason": sentence})


class FolderMaintenance:
    """Maintenance of the queues of one folder, one after the other. A problem of one queue is reported as its outcome.

    `tool` is the name of the command, and `look` its option to verify only, for messages. `now_ms` is the add time of
    items whose record has none. A large queue shows its `progress`.
    """

    def __init__(self, tool: str, look: str, folder: Folder, now_ms: int, progress: Progress = ByteProgress) -> None:
        self._tool = tool
        self._look = look
        self._folder = folder
        self._now_ms = now_ms
        self._progress = progress

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
        work = self._verify_journal(found.queue) if isinstance(found, FoundJournal) else self._verify_scroll(found)
        return _outcomes(found, "cannot be read", work)

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
        chosen = folder.chosen(names)
        journals = [folder.journals()[found.queue] for found in chosen if isinstance(found, FoundJournal)]
        with ExitStack() as stack:
            numbers = FileNumbers(lambda: self._now_ms)
            if journals:
                check_owner(
                    folder.path, (file.file_name for each in journals for file in each.live_files()), self._tool
                )
                advice = f"stop it first, or check the files with {self._look}"
                stack.enter_context(locked_folder(folder.disk, folder.path, advice))
                folder.hold()
                numbers.mark_used(number for each in folder.journals().values() for number in each.numbers())
                chosen = folder.chosen(names)
            for found in chosen:
                if isinstance(found, FoundJournal):
                    work = self._pack_journal(found.queue, numbers)
                    yield from _outcomes(found, "not packed, and nothing is lost", work)
                else:
                    yield from _outcomes(found, "cannot be read", self._unpacked_scroll(found))
            yield from self.verify_rest(has_queues=bool(chosen), is_all=False)

    def _verify_journal(self, name: bytes) -> Iterator[QueueOutcome]:
        inspected = self._inspected(name)
        yield _journal_outcome(name, _state_of(inspected.files), inspected, inspected, _damage(inspected.files))

    def _pack_journal(self, name: bytes, numbers: FileNumbers) -> Iterator[QueueOutcome]:
        folder, before = self._folder, self._inspected(name)
        state, after, remarks = "unchanged", before, _damage(before.files, is_repaired=True)
        if not before.is_packed:
            state = "packed"
            files = folder.journals()[name]
            after = pack_queue(folder.disk, folder.path, files, before, numbers, self._now_ms, self._progress)
        if after.digest != before.digest:
            remarks.append(
                OutcomeRemark(
                    f"queue {show_queue(name)}: the repair of its files changed its items, as at a server's start:"
                    f" {before.items} -> {count(after.items, 'item')}; some may be placeholders of lost items, or come"
                    " again",
                    is_complaint=False,
                )
            )
        yield _journal_outcome(name, state, before, after, remarks)

    def _inspected(self, name: bytes) -> JournalInspection:
        with self._folder.open_journal(name) as journal:
            return JournalInspection(journal, self._now_ms, self._progress)

    def _unpacked_scroll(self, found: Found) -> Iterator[QueueOutcome]:
        assert isinstance(found, FoundScroll)  # a folder has no other selections
        for queue in chosen_queues(self._folder.scroll(found), found):
            fields = {"queue": queue.spelled, "state": "unchanged", "reason": _NOT_PACKED}
            yield QueueOutcome((), f"{queue.shown_name}: unchanged: {_NOT_PACKED}", fields)

    def _verify_scroll(self, found: Found) -> Iterator[QueueOutcome]:
        assert isinstance(found, FoundScroll)
        with self._folder.open_scroll(found) as scroll:
            contents = ScrollContents(scroll, self._now_ms, self._progress)
            contents.read()
        for read in contents.queues:
            yield _scroll_outcome(contents, read)
        if damage := _damage(contents.files):
            yield QueueOutcome(tuple(damage))


def _outcomes(found: Found, failure: str, work: Iterator[QueueOutcome]) -> Iterator[QueueOutcome]:
    """Yield the outcomes of `work`. An error becomes an outcome; `failure` says what an OSError means."""
    queue = spell_queue(found.queue) if isinstance(found, FoundJournal) else None
    try:
        yield from work
    except OSError as error:
        yield failed_outcome(queue, f"{found.shown}: {failure}: {explain_os_error(error)}")
    except ToolFailed as error:
        yield failed_outcome(queue, str(error))


def _damage(files: Sequence[FileReadResult], *, is_repaired: bool = False) -> list[OutcomeRemark]:
    """Return a remark for each file with a problem. An unfinished record or repaired damage is not a complaint."""
    more = "; what could not be read is in .kestrel/damaged/" if is_repaired else ""
    problems = (read for read in files if read.end.problem is not None)
    return [OutcomeRemark(damage_sentence(read) + more, read.is_damaged and not is_repaired) for read in problems]


def _state_of(files: Sequence[FileReadResult]) -> str:
    if any(read.is_damaged for read in files):
        return "damaged"
    return "unfinished" if any(read.end.problem is not None for read in files) else "ok"


def _journal_outcome(
    name: bytes, state: str, before: JournalInspection, after: JournalInspection, remarks: Sequence[OutcomeRemark]
) -> QueueOutcome:
    files = f"{count(len(before.files), 'file')}, {before.bytes} -> {count(after.packed_bytes, 'byte')}"
    fields = {
        "queue": spell_queue(name),
        "state": state,
        "items": after.items,
        "files": len(before.files),
        "bytes_before": before.bytes,
        "bytes_after": after.packed_bytes,
        "damage": damage_json(before.files),
    }
    line = f"{show_queue(name)}: {state}: {files}, {count(after.items, 'item')}"
    return QueueOutcome(tuple(remarks), line, fields)


def _scroll_outcome(contents: ScrollContents, read: ScrollQueueContents) -> QueueOutcome:
    """Return the result of reading one queue of a scroll: its reader file and the shared writer files."""
    queue = read.queue
    files = [*contents.writers, *([] if read.file is None else [read.file])]
    shared = contents.writers if len(contents.scroll.queues) > 1 else []
    state = _state_of(files)
    if state == "ok" and (queue.name is None or read.state.is_deleted):
        state = "unnamed" if queue.name is None else "deleted"
    remarks: tuple[OutcomeRemark, ...] = ()
    if queue.name is None:
        remarks = (OutcomeRemark(f"{queue.shown_name}: the name of its queue is not known, so no server serves it"),)
    size = sum(each.size for each in files)
    of_these = f", {len(shared)} of them shared" if shared else ""
    counted = f"{count(len(files), 'file')}{of_these}, {count(size, 'byte')}, {count(read.left.items, 'item')}"
    fields = {
        "queue": queue.spelled,
        "state": state,
        "items": read.left.items,
        "files": len(files),
        "shared_files": len(shared),
        "bytes_before": size,
        "bytes_after": size,
        "damage": damage_json(files),
    }
    return QueueOutcome(remarks, f"{queue.shown_name}: {state}: {counted}", fields)


if __name__ == "__main__":
    sys.exit(main())
