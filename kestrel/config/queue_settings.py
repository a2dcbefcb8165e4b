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

    max_items: int | None = setting(
        "maxItems", optional(COUNT), "A put is refused while the queue has this many items.", None
    )
    max_size_bytes: int | None = setting(
        "maxSize", optional(SIZE), "A put is refused while the items have this many bytes of data.", None
    )
    max_item_size_bytes: int | None = setting("maxItemSize", optional(SIZE), "A larger item is always refused.", None)
    max_age_ms: int | None = setting(
        "maxAge",
        optional(DURATION),
        "The age at which an item expires, if its client set no earlier time. A change also applies to existing "
        "items.",
        None,
    )
    default_journal_size_bytes: int = setting(
        "defaultJournalSize", SIZE, "The journal of an empty queue is rewritten when its file has this size.", 16 * MIB
    )
    max_memory_size_bytes: int = setting(
        "maxMemorySize",
        SIZE,
        "Further data stay only on disk (read-behind). A larger journal file is rotated.",
        128 * MIB,
    )
    max_journal_size_bytes: int = setting(
        "maxJournalSize", SIZE, "A journal is compacted when all its files together are larger.", GIB
    )
    min_journal_compact_delay_ms: int | None = setting(
        "minJournalCompactDelay",
        optional(DURATION),
        "The minimum time between two rewrites of a journal for its size; none: no minimum.",
        60_000,
    )
    discard_old_when_full: bool = setting(
        "discardOldWhenFull",
        BOOLEAN,
        "A put to a full queue drops items from the head until there is room, rather than being refused.",
        False,
    )
    keep_journal: bool = setting(
        "keepJournal", BOOLEAN, "Keep the items on disk. Otherwise they are lost when the server stops.", True
    )
    sync_journal_ms: int | None = setting(
        "syncJournal",
        optional(DURATION_OR_ZERO, "never"),
        "The maximum time before the journal is written to the disk (fsync). 0: the reply to a change waits for it. "
        "Never: the operating system decides, and unwritten data are lost when the machine crashes, but not when the "
        "server does.",
        None,
    )
    expire_to_queue: bytes | None = setting(
        "expireToQueue", optional(QUEUE_NAME), "Expired items are put to this queue instead of being dropped.", None
    )
    max_expire_sweep: int | None = setting(
        "maxExpireSweep", optional(COUNT), "The maximum number of items that one sweep of the timer expires.", None
    )
    max_redeliveries: int | None = setting(
        "maxRedeliveries",
        optional(COUNT),
        "An item that was aborted or timed out this many times moves to errorQueue.",
        None,
    )
    error_queue: bytes | None = setting(
        "errorQueue",
        optional(QUEUE_NAME),
        "The queue for items that were aborted or timed out maxRedeliveries times. Both settings are needed.",
        None,
    )
    fanout_only: bool = setting(
        "fanoutOnly", BOOLEAN, "The queue stores no items: they only go to its children (name+child).", False
    )
    max_queue_age_ms: int | None = setting(
        "maxQueueAge",
        optional(DURATION),
        "An empty queue is deleted at this age, counted from its creation or the server's start.",
        None,
    )
    enable_trace: bool = setting(
        "enableTrace", BOOLEAN, "Log each opening, confirm and abort of a read of this queue.", False
    )
    disable_aggressive_rewrites: bool = setting(
        "disableAggressiveRewrites",
        BOOLEAN,
        "Do not rewrite the journal repeatedly when a queue has no items except many open reads.",
        False,
    )
    open_transaction_timeout_ms: int | None = setting(
        "openTransactionTimeout", optional(DURATION), "An open read is put back at the head after this time.", None
    )
    white_list_client_id_for_enqueue: tuple[bytes, ...] | None = setting(
        "whiteListClientIdForEnqueue",
        optional(IDENTITIES),
        "Only these clients may put; none: all clients; an empty list: no client.",
        None,
    )
    white_list_client_id_for_dequeue: tuple[bytes, ...] | None = setting(
        "whiteListClientIdForDequeue",
        optional(IDENTITIES),
        "Only these clients may get; none: all clients; an empty list: no client.",
        None,
    )


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

    name: bytes = attrs.field(
        metadata=described("name", QUEUE_NAME, "The name that clients put to. It masks a queue with the same name.")
    )
    destination_queues: tuple[bytes, ...] = attrs.field(
        metadata=described("destinationQueues", QUEUE_NAMES, "Queues, fanout queues or further aliases.")
    )
