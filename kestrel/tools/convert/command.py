"""Command line of kestrel-convert: convert a folder of journals to one of scrolls, or back, while no server runs."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

from kestrel.disk.files import Disk
from kestrel.server.process import raise_file_limit
from kestrel.server.startup_errors import EX_CANNOT_CREATE
from kestrel.tools.arguments import flag, make_parser, one_of, option
from kestrel.tools.convert.conversion_folders import ConversionFolder, ConversionState, Staging, check_folders
from kestrel.tools.convert.sources import SOURCES, ConversionSource, Family, FamilyItem, FolderSums, sum_families
from kestrel.tools.convert.targets import TARGETS, ConversionTarget
from kestrel.tools.files.folder import Folder, check_owner
from kestrel.tools.formatting import align_table, count, show_path, show_queue, show_size, spell_queue
from kestrel.tools.progress import ByteProgress
from kestrel.tools.tool_runner import EX_OK, BadUsage, Output, ToolFailed, print_error, run

TOOL: Final = "kestrel-convert"

_BLOCK_BYTES: Final = 4096
"""Disk space that a file can take beyond its length, at most."""

_DESCRIPTION: Final = """\
Convert a folder of Kestrel's journals to a folder of scrolls, or back. Every queue keeps its items in order, with their
data, times and errors, as a restart of the server would serve them. Stop the server first. The source is only read.
The target is written as TARGET.converting and compared with the source item by item, then renamed to TARGET. After an
interruption, run the same command to continue."""

_EPILOG: Final = """\
examples:
  kestrel-convert journal:/var/spool/kestrel scroll:/srv/kestrel
  kestrel-convert scroll:/srv/kestrel journal:/var/spool/kestrel-2
  kestrel-convert --json journal:/var/spool/kestrel scroll:/srv/kestrel | jq .

exit status: 0 if the target exists and holds the same items as the source; 1 if the source is damaged, or a file could
not be read or written; 2 if the command line is invalid; 73 if the target cannot be created, or the disk is too full
for it; 75 if a server uses the source; 130 after Ctrl-C."""


def main(
    argv: Sequence[str] | None = None,
    disk: Disk | None = None,
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> int:
    """Run the command and return its exit status."""
    return run(TOOL, lambda: _Conversion(_parser().parse_args(argv), disk or Disk(), now_ms()).do())


def _parser() -> ArgumentParser:
    target = "a folder of the other kind that does not exist yet, or is empty"
    return make_parser(
        TOOL,
        _DESCRIPTION,
        _EPILOG,
        option("source", "SOURCE", ConversionFolder.parse, "journal:FOLDER or scroll:FOLDER; it is only read"),
        option("target", "TARGET", ConversionFolder.parse, target),
        flag("--anew", "start over, and discard the work of an unfinished earlier run"),
        one_of(
            flag("-q", "--quiet", "print nothing on success"),
            flag("--json", "print JSON, one object per queue, then a summary"),
        ),
    )


class _Conversion:
    """One conversion. `now_ms` is the current time, used if it begins now and does not resume an earlier run."""

    def __init__(self, arguments: Namespace, disk: Disk, now_ms: int) -> None:
        self._source: ConversionFolder = arguments.source
        self._target: ConversionFolder = arguments.target
        self._arguments = arguments
        self._disk = disk
        self._now_ms = now_ms
        self._output = Output()
        self._staging = Staging(disk, self._target.path)

    def do(self) -> int:
        """Convert the folder, or resume an earlier run. Return the exit status."""
        raise_file_limit()  # all files of a family are open at once
        check_folders(self._source, self._target, self._staging.path)
        state = self._staging.published()
        if state is not None and self._is_about(state):
            with self._staging.owned():
                self._disk.sync_folder(os.path.dirname(self._target.path))
                self._end(state)
            return EX_OK
        self._target.check_free()
        self._open_source()  # check before locking, which writes to the folder
        with self._source.owned(self._disk):
            source = self._open_source()
            for sentence in source.folder.strays().unread():
                print_error(TOOL, sentence)
            with self._staging.owned():
                try:
                    self._end(self._convert(source))
                except KeyboardInterrupt:
                    self._remark("run the same command to continue")
                    raise
        return EX_OK

    def _open_source(self) -> ConversionSource:
        source = self._source.open(self._disk, self._now_ms)
        check_owner(self._source.path, source.file_names, TOOL)
        return source

    def _is_about(self, state: ConversionState) -> bool:
        return (state.source, state.target) == (self._source.full, self._target.full)

    def _convert(self, source: ConversionSource) -> ConversionState:
        staging = self._staging
        state = self._begun(source)
        source.now_ms = state.now_ms
        if not state.is_verified:
            target = TARGETS[self._target.kind](self._disk, staging.queues, state.now_ms)
            if state.sums is None:
                state.source_bytes = source.size
                state.sums = self._sums(source, "reading", target)
                staging.note(state)
            self._check_room(target, state.sums)
            self._write(source, target, state.sums)
            self._compare(state.sums, state.now_ms)
            if self._files_of(source) != state.files:
                raise ToolFailed("the source has changed during the conversion: stop the server that uses it")
            state.is_verified = True
            staging.note(state)
        staging.publish()
        return state

    def _end(self, state: ConversionState) -> None:
        """Report the conversion, then erase its state. If the process is killed between, the next run reports it."""
        try:
            self._tell(state)
        except BrokenPipeError:  # the reader closed the pipe: the report counts as read
            self._staging.end()
            raise
        self._staging.end()

    def _begun(self, source: ConversionSource) -> ConversionState:
        """Return the state of an earlier run of this conversion if its source is unchanged, else a new state."""
        staging = self._staging
        new = ConversionState(self._source.full, self._target.full, self._files_of(source), self._now_ms)
        state = staging.state()
        if state is not None and not self._arguments.anew:
            shown = show_path(staging.path)
            if not self._is_about(state):
                raise BadUsage(
                    f"{shown} is of another conversion, from {state.source} to {state.target}, which is not finished:"
                    " finish that, start this one over with --anew, or name another target"
                )
            is_lost = state.is_verified and not self._disk.is_there(staging.queues)  # published, then moved away
            if state.files == new.files and not is_lost:
                self._remark(f"resuming the earlier run in {shown}")
                return state
            self._remark(f"the source has changed since {shown} was begun: starting over")
        staging.erase()
        staging.note(new)
        return new

    def _remark(self, sentence: str) -> None:
        if not self._arguments.quiet:
            print_error(TOOL, sentence)

    def _files_of(self, source: ConversionSource) -> str:
        """Return a digest of the names, lengths and times of the source's files, to detect changes."""
        digest = blake2b(digest_size=16)
        for name in source.file_names:
            path = source.folder.path + b"/" + name
            digest.update(b"%b %d %d\n" % (name, self._disk.length(path), self._disk.changed_ns(path)))
        return digest.hexdigest()

    def _sums(self, source: ConversionSource, doing: str, target: ConversionTarget | None = None) -> FolderSums:
        """Return the sums of a folder. Raise `ToolFailed` if it has a queue or item that the target cannot hold."""
        if target is not None:
            for family in source.families:
                for name in family.queues:
                    if not target.accepts_name(name):
                        raise ToolFailed(
                            f"the queue {show_queue(name)} cannot be kept in a journal, whose file has the same name:"
                            " move its items to a queue of another name, and delete it"
                        )
        with ByteProgress(doing, source.readings * source.size) as progress:
            return sum_families(
                (family, _checked(family, source.steps(family, progress), target)) for family in source.families
            )

    def _check_room(self, target: ConversionTarget, sums: FolderSums) -> None:
        disk, path = self._disk, self._staging.queues
        names = disk.list_files(path) if disk.is_there(path) else []
        there = sum(disk.length(path + b"/" + name) + _BLOCK_BYTES for name in names)
        whole = sums.journal_bytes if target.kind == "journal" else sums.scroll_bytes
        whole += target.files_per_queue * len(sums.queues) * _BLOCK_BYTES
        needed, free = whole - there, disk.free_bytes(self._staging.path)
        if needed > free:
            raise ToolFailed(
                f"the target needs about {show_size(needed)} more, and its disk has {show_size(free)}: make room, or"
                " name a target on another disk",
                EX_CANNOT_CREATE,
            )

    def _write(self, source: ConversionSource, target: ConversionTarget, sums: FolderSums) -> None:
        target.make()
        quiet = ByteProgress("", 0)
        with ByteProgress("writing", sum(each.data_bytes for each in sums.queues.values())) as progress:
            for family in source.families:
                steps = progress.counted(
                    source.steps(family, quiet), lambda step: len(step.data) * len(step.queue_indexes)
                )
                target.write(family, sums.queues, steps)
                target.sync()

    def _compare(self, sums: FolderSums, now_ms: int) -> None:
        """Raise `ToolFailed` unless a restart would serve the same items from the new folder as from the source."""
        made = self._target._replace(path=self._staging.queues).open(self._disk, now_ms)
        found = self._sums(made, "comparing").queues
        for name in sorted(sums.queues.keys() | found.keys()):
            if sums.queues.get(name) != found.get(name):
                raise ToolFailed(
                    f"queue {show_queue(name)}: the new folder and the source differ, so the target was not created:"
                    " run this again with --anew, and if that fails too, please report it"
                )

    def _tell(self, state: ConversionState) -> None:
        if self._arguments.quiet or state.sums is None:
            return
        bytes_after = SOURCES[self._target.kind](Folder(self._disk, self._target.path), state.now_ms).size
        queues = state.sums.queues
        if self._arguments.json:
            for name, each in queues.items():
                self._output.object(
                    {"queue": spell_queue(name), "state": "equal", "items": each.items, "data_bytes": each.data_bytes}
                )
            summary = {
                "source": self._source.shown,
                "target": self._target.shown,
                "queues": len(queues),
                "items": state.sums.items,
                "bytes_before": state.source_bytes,
                "bytes_after": bytes_after,
            }
            self._output.object({"summary": summary})
        else:
            rows = [[show_queue(name), str(each.items), str(each.data_bytes), "equal"] for name, each in queues.items()]
            self._output.lines(align_table([["queue", "items", "bytes of data", "compared"], *rows]))
            source = f"{self._source.shown}, {state.source_bytes}"
            counted = f"{count(len(queues), 'queue')}, {count(state.sums.items, 'item')}"
            self._output.line(f"{counted}: {source} -> {self._target.shown}, {count(bytes_after, 'byte')}")
        self._output.flush()


def _checked(family: Family, steps: Iterator[FamilyItem], target: ConversionTarget | None) -> Iterator[FamilyItem]:
    for step in steps:
        if target is not None and len(step.data) > target.max_data_bytes:
            queue = show_queue(family.queues[step.queue_indexes[0]])
            raise ToolFailed(
                f"the queue {queue} has an item of {len(step.data)} bytes, and an item of a {target.kind} has at most"
                f" {target.max_data_bytes}: take it from the queue first"
            )
        yield step


if __name__ == "__main__":
    sys.exit(main())
