"""The steps of every change to a queue's files that takes more than one operation: where a crash may fall.

At each of them the disk is told (`kestrel.disk.files.Disk.crash_point`), so that a test can end the process there. What
a start finds after each is said here.
"""

from __future__ import annotations

from typing import Final

ROTATED: Final = "rotated"
"""The current file has a number and there is no current file: the replay ends with the rotated files."""

PACK_WRITTEN: Final = "pack written"
"""The temporary file is whole, synced or not: it is erased."""

PACK_SYNCED: Final = "pack synced"
"""The same; it would be good to use, but nothing says so."""

PACK_PUBLISHED: Final = "pack published"
"""The file is called .pack: it stands for every rotated file numbered up to its own, which are erased."""

PACK_PUBLISHED_FOR_GOOD: Final = "pack published for good"
"""The same, and a power failure does not undo it."""

PACK_REPLACED: Final = "pack replaced"
"""The replaced files are gone: the suffix is taken away."""

PACK_FINISHED: Final = "pack finished"
"""The file is an ordinary rotated one."""

TAIL_COPIED: Final = "tail copied"
"""A damaged or unfinished end was copied and the file is as it was: it is repaired again, with another copy."""

TAIL_CUT: Final = "tail cut"
"""The file is cut behind its last good record, for good once it is synced."""

COPY_WRITTEN: Final = "copy written"
"""The good part of a file that cannot be cut stands in a temporary file: it is erased, the file is as it was."""

COPY_PUBLISHED: Final = "copy published"
"""That file has taken the name of the other."""

REMOVALS_DROPPED: Final = "removals dropped"
"""One more file behind a damaged one holds only its items: the next start goes on with the others."""

REALIGNED: Final = "realigned"
"""The records that stand for lost ones are in the repaired file, or in part: the next start goes on from there."""

DELETION_MARKED: Final = "deletion marked"
"""The queue's newest file was renamed to a deletion mark: no file with a lower number counts, and all are erased."""

QUEUE_ERASED: Final = "queue erased"
"""The files of a queue with a long name are gone for good, its name's file is not: the next start erases that."""

THROWN_AWAY: Final = "thrown away"
"""One more file of a deleted queue is out of the way: the same."""
