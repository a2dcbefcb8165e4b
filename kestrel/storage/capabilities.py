"""Capabilities of storages: promises beyond the interfaces. `IStorageFactory.capabilities` has the exact terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CAPABILITIES: Final[Mapping[str, str]] = {
    "durable": "committed changes survive the process, and the machine as far as syncJournal says",
    "errors_kept": "an item keeps its error count as long as it exists, over restarts too",
    "order_kept": "returned items keep their order over a restart",
    "ranges": "items have ids, and ranges of ids can be read repeatedly",
    "shared_fanout": "an item for a parent and its children is stored once",
}
"""The members that `IStorageFactory.capabilities` may have, each with its meaning for operators."""
