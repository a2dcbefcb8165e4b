"""Command line of kestrel-qpack: pack the journals of a folder while no server runs, or verify its files."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Final

from kestrel.disk.files import Disk
from kestrel.server.process import raise_file_limit
from kestrel.tools.arguments import add_queue_option, make_parser, path_name
from kestrel.tools.files.folder import Folder
from kestrel.tools.formatting import show_path
from kestrel.tools.output import Output
from kestrel.tools.qpack.maintenance import FolderMaintenance
from kestrel.tools.qpack.outcomes import QueueOutcome
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, EX_USAGE, ToolFailed, print_error, run

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


def main(argv: Sequence[str] | None = None, disk: Disk | None = None) -> int:
    """Run the command and return its exit status."""
    return run(TOOL, lambda: _PackRun(_parser().parse_args(argv), disk or Disk()).do())


def _parser() -> ArgumentParser:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG)
    parser.add_argument("folder", metavar="FOLDER", type=path_name, help="the folder of the journals or scrolls")
    add_queue_option(parser)
    parser.add_argument(
        "--verify", "--dry-run", action="store_true", help="read all files, change nothing, and report their state"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object per queue")
    return parser


class _PackRun:
    """One run of the command over the queues of a folder."""

    def __init__(self, arguments: Namespace, disk: Disk) -> None:
        self._disk = disk
        self._path = os.fsencode(arguments.folder).rstrip(b"/") or b"/"
        self._names: list[bytes] = arguments.queues
        self._is_json: bool = arguments.json
        self._is_verifying: bool = arguments.verify
        self._output = Output()
        self._now_ms = int(time.time() * 1000)

    def do(self) -> int:
        """Verify or pack the queues. Return the exit status."""
        raise_file_limit()  # all files of a queue are open at once
        if not os.path.isdir(self._path):
            raise ToolFailed(f"there is no folder {show_path(self._path)}: name the folder of the queues", EX_USAGE)
        upkeep = FolderMaintenance(TOOL, "--verify", Folder(self._disk, self._path), self._now_ms)
        status = EX_OK
        for outcome in upkeep.verify(self._names) if self._is_verifying else upkeep.pack(self._names):
            self._tell(outcome)
            if any(outcome.complaints):
                status = EX_FOUND
        return status

    def _tell(self, outcome: QueueOutcome) -> None:
        if self._is_json and outcome.fields is not None:
            self._output.object(outcome.fields)
        elif not self._is_json and outcome.line is not None:
            self._output.line(outcome.line)
        self._output.flush()
        for remark in outcome.remarks:
            print_error(TOOL, remark.sentence)


if __name__ == "__main__":
    sys.exit(main())
