"""Folders of the server inside a queue folder. Kestrel and libkestrel ignore them, because they read files only."""

from __future__ import annotations

from typing import Final

PRIVATE_FOLDER: Final = b".kestrel"
"""Everything in the queue folder that is neither a journal nor a scroll: lock, reserve, quarantined files."""

ERASE_FOLDER: Final = PRIVATE_FOLDER + b"/erase"
"""Files that a thread erases, so that erasing a large file does not delay the reactor."""

DAMAGED_FOLDER: Final = PRIVATE_FOLDER + b"/damaged"
"""Quarantined copies of bytes that were cut off, and files that cannot be trusted."""

SEGMENTS_FOLDER: Final = PRIVATE_FOLDER + b"/segments"
"""The segment log of each queue, named like its current file (`kestrel/journal/segments.py`)."""

FAILED_SYNCS_FOLDER: Final = PRIVATE_FOLDER + b"/failed-syncs"
"""Notes of failed syncs (`kestrel/storage/folder_resources.py`)."""
