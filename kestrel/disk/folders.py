"""The folders in a queue folder that are ours alone. Kestrel and libkestrel look at files only."""

from __future__ import annotations

from typing import Final

PRIVATE_FOLDER: Final = b".kestrel"
"""What is ours and holds no items lies there: the lock, the reserve, what was set aside."""

ERASE_FOLDER: Final = PRIVATE_FOLDER + b"/erase"
"""Where files are on their way out, so that erasing a large one delays nobody."""

DAMAGED_FOLDER: Final = PRIVATE_FOLDER + b"/damaged"
"""Where copies of what was cut are kept, and files that cannot be trusted."""

SEGMENTS_FOLDER: Final = PRIVATE_FOLDER + b"/segments"
"""The segment log of each queue, named like its current file (`kestrel/journal/segments.py`)."""

FAILED_SYNCS_FOLDER: Final = PRIVATE_FOLDER + b"/failed-syncs"
"""Where it is noted of whose files a sync has failed (`kestrel/storage/failed_syncs.py`)."""
