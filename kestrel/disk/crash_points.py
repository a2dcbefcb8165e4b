"""Crash points: the steps of each change to a queue's files that takes more than one operation.

The code reports each step to `kestrel.disk.files.Disk.crash_point`, so that a test can end the process there. The text
of each constant gives the state of the files and what the next start does.
"""

from __future__ import annotations

from typing import Final

ROTATED: Final = "rotated"
"""The current file was renamed to a numbered one, and there is no current file: replay ends with the rotated files."""

PACK_WRITTEN: Final = "pack written"
"""The temporary file is complete, synced or not: a start erases it."""

PACK_SYNCED: Final = "pack synced"
"""The temporary file is complete and synced, but nothing records that: a start erases it."""

PACK_PUBLISHED: Final = "pack published"
"""The file is named ``.pack`` and replaces each rotated file with a number up to its own: a start erases those."""

PACK_PUBLISHED_FOR_GOOD: Final = "pack published for good"
"""The file is named ``.pack`` and the folder is synced, so a power failure keeps it: a start erases the replaced files.
"""

PACK_REPLACED: Final = "pack replaced"
"""The replaced files are erased: a start removes the suffix ``.pack``."""

PACK_FINISHED: Final = "pack finished"
"""The packed file is an ordinary rotated file: nothing is left to do."""

TAIL_COPIED: Final = "tail copied"
"""A damaged or unfinished tail was copied, and the file is unchanged: a start repairs it, with another copy."""

TAIL_CUT: Final = "tail cut"
"""The file was cut after its last good record. A sync makes that durable."""

COPY_WRITTEN: Final = "copy written"
"""New contents for a file are in a temporary file, and the file is unchanged: a start erases the temporary file."""

COPY_PUBLISHED: Final = "copy published"
"""The temporary file was renamed to the file that it replaces."""

REMOVALS_DROPPED: Final = "removals dropped"
"""One more file after a damaged file was rewritten with its items only: a start continues with the next one."""

REALIGNED: Final = "realigned"
"""Some or all records that replace lost ones are in the repaired file: a start continues from there."""

DELETION_MARKED: Final = "deletion marked"
"""The queue's newest file was renamed to a deletion mark: a start erases it and all files with lower numbers."""

QUEUE_ERASED: Final = "queue erased"
"""The files of a queue with a long name are erased for good, but not the file with its name: a start erases that."""

THROWN_AWAY: Final = "thrown away"
"""One more file of a deleted queue is erased: a start erases the rest."""
