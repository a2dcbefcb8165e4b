"""What storages may promise beyond the interfaces, in plain words. `IStorageFactory` has it to the letter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CAPABILITIES: Final[Mapping[str, str]] = {
    "durable": "what was acknowledged outlives the process, and the machine as far as syncJournal says",
    "errors_kept": "how often an item failed lasts as long as the item, over restarts too",
    "order_kept": "what was put back stays in its order over a restart",
    "ranges": "items have ids, and ranges of them can be read again",
    "shared_fanout": "an item for a parent and its children is stored once",
}
"""All that `IStorageFactory.capabilities` may hold, each with what it means to the owner of a server."""
