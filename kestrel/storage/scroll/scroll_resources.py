"""The resources that all journals of a scroll folder share."""

from __future__ import annotations

from kestrel.storage.folder_resources import FolderResources


class ScrollResources(FolderResources):
    """The resources that all journals of a scroll folder share."""

    archive: bytes | None = None
    """Folder for writer files that are no longer needed; None means that they are erased."""
    is_all_shared = False
    """True if each item is for all readers of its journal."""
