"""The settings of one queue, and those of an alias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kestrel.config.setting import (
    BOOLEAN,
    COUNT,
    DURATION,
    DURATION_OR_ZERO,
    IDENTITIES,
    QUEUE_NAME,
    QUEUE_NAMES,
    SIZE,
    described,
    optional,
    setting,
)
from kestrel.config.units import GIB, MIB


@attrs.frozen(kw_only=True)
class QueueSettings:
    """The settings of one queue, including all inherited ones. The defaults apply without a file."""

    max_items: int | None = setting("maxItems", optional(COUNT), None)
    """A put is refused while the queue has this many items."""
    max_size_bytes: int | None = setting("maxSize", optional(SIZE), None)
    """A put is refused while the items have this many bytes of data."""
    max_item_size_bytes: int | None = setting("maxItemSize", optional(SIZE), None)
    """A larger item is always refused."""
    max_age_ms: int | None = setting("maxAge", optional(DURATION), None)
    """The age at which an item expires, if its client set no earlier time. A change also applies to existing items."""
    default_journal_size_bytes: int = setting("defaultJournalSize", SIZE, 16 * MIB)
    """The journal of an empty queue is rewritten when its file has this size."""
    max_memory_size_bytes: int = setting("maxMemorySize", SIZE, 128 * MIB)
    """Further data stay only on disk (read-behind). A larger journal file is rotated."""
    max_journal_size_bytes: int = setting("maxJournalSize", SIZE, GIB)
    """A journal is compacted when all its files together are larger."""
    min_journal_compact_delay_ms: int | None = setting("minJournalCompactDelay", optional(DURATION), 60_000)
    """The minimum time between two rewrites of a journal for its size; none: no minimum."""
    discard_old_when_full: bool = setting("discardOldWhenFull", BOOLEAN, False)
    """A put to a full queue drops items from the head until there is room, rather than being refused."""
    keep_journal: bool = setting("keepJournal", BOOLEAN, True)
    """Keep the items on disk. Otherwise they are lost when the server stops."""
    sync_journal_ms: int | None = setting("syncJournal", optional(DURATION_OR_ZERO, "never"), None)
    """The maximum time before the journal is written to the disk (fsync). 0: the reply to a change waits for it. Never:
    the operating system decides, and unwritten data are lost when the machine crashes, but not when the server does.
    """
    expire_to_queue: bytes | None = setting("expireToQueue", optional(QUEUE_NAME), None)
    """Expired items are put to this queue instead of being dropped."""
    max_expire_sweep: int | None = setting("maxExpireSweep", optional(COUNT), None)
    """The maximum number of items that one sweep of the timer expires."""
    max_redeliveries: int | None = setting("maxRedeliveries", optional(COUNT), None)
    """An item that was aborted or timed out this many times moves to errorQueue."""
    error_queue: bytes | None = setting("errorQueue", optional(QUEUE_NAME), None)
    """The queue for items that were aborted or timed out maxRedeliveries times. Both settings are needed."""
    fanout_only: bool = setting("fanoutOnly", BOOLEAN, False)
    """The queue stores no items: they only go to its children (name+child)."""
    max_queue_age_ms: int | None = setting("maxQueueAge", optional(DURATION), None)
    """An empty queue is deleted at this age, counted from its creation or the server's start."""
    enable_trace: bool = setting("enableTrace", BOOLEAN, False)
    """Log each opening, confirm and abort of a read of this queue."""
    disable_aggressive_rewrites: bool = setting("disableAggressiveRewrites", BOOLEAN, False)
    """Do not rewrite the journal repeatedly when a queue has no items except many open reads."""
    open_transaction_timeout_ms: int | None = setting("openTransactionTimeout", optional(DURATION), None)
    """An open read is put back at the head after this time."""
    white_list_client_id_for_enqueue: tuple[bytes, ...] | None = setting(
        "whiteListClientIdForEnqueue", optional(IDENTITIES), None
    )
    """Only these clients may put; none: all clients; an empty list: no client."""
    white_list_client_id_for_dequeue: tuple[bytes, ...] | None = setting(
        "whiteListClientIdForDequeue", optional(IDENTITIES), None
    )
    """Only these clients may get; none: all clients; an empty list: no client."""


@attrs.frozen
class QueueOverrides:
    """The settings that one table of a file sets for a queue. All others are inherited."""

    values: Mapping[str, Any] = attrs.field(factory=dict)
    """Values by the field's name in `QueueSettings`. None means that the file has "none"."""

    def over(self, inherited: QueueSettings) -> QueueSettings:
        """Return the inherited settings with these settings in place of theirs."""
        return attrs.evolve(inherited, **self.values) if self.values else inherited


@attrs.frozen(kw_only=True)
class AliasSettings:
    """An alias: a name that stands for one or more queues. A put to it goes to each of them."""

    name: bytes = attrs.field(metadata=described("name", QUEUE_NAME))
    """The name that clients put to. It masks a queue with the same name."""
    destination_queues: tuple[bytes, ...] = attrs.field(metadata=described("destinationQueues", QUEUE_NAMES))
    """Queues, fanout queues or further aliases."""
