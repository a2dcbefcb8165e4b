"""The settings of one queue, and those of an alias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kestrel.config.setting import setting
from kestrel.config.setting_kinds import (
    BOOLEAN,
    COUNT,
    DURATION,
    DURATION_OR_ZERO,
    IDENTITIES,
    QUEUE_NAME,
    QUEUE_NAMES,
    SIZE,
    optional,
)
from kestrel.config.units import GIB, MIB


@attrs.frozen(kw_only=True)
class QueueSettings:
    """What holds for one queue, everything inherited already. The defaults are those without a file."""

    max_items: int | None = attrs.field(
        default=None,
        metadata=setting(
            "maxItems",
            optional(COUNT),
            "A put is refused while the queue holds that many items.",
        ),
    )
    max_size_bytes: int | None = attrs.field(
        default=None,
        metadata=setting(
            "maxSize",
            optional(SIZE),
            "A put is refused while the items' data are that large.",
        ),
    )
    max_item_size_bytes: int | None = attrs.field(
        default=None,
        metadata=setting("maxItemSize", optional(SIZE), "A larger item is always refused."),
    )
    max_age_ms: int | None = attrs.field(
        default=None,
        metadata=setting(
            "maxAge",
            optional(DURATION),
            "An item expires when it is that old, or earlier if its client said so. A change counts for "
            "items that are there already.",
        ),
    )
    default_journal_size_bytes: int = attrs.field(
        default=16 * MIB,
        metadata=setting(
            "defaultJournalSize",
            SIZE,
            "The journal of an empty queue is started anew when its file is that large.",
        ),
    )
    max_memory_size_bytes: int = attrs.field(
        default=128 * MIB,
        metadata=setting(
            "maxMemorySize",
            SIZE,
            "Data beyond this stay on disk alone (read-behind); a journal file that is larger is rotated.",
        ),
    )
    max_journal_size_bytes: int = attrs.field(
        default=GIB,
        metadata=setting(
            "maxJournalSize",
            SIZE,
            "A journal that is larger, all files together, is compacted.",
        ),
    )
    min_journal_compact_delay_ms: int | None = attrs.field(
        default=60_000,
        metadata=setting(
            "minJournalCompactDelay",
            optional(DURATION),
            "The least time between two rewrites of a journal for its size; none: no waiting.",
        ),
    )
    discard_old_when_full: bool = attrs.field(
        default=False,
        metadata=setting(
            "discardOldWhenFull",
            BOOLEAN,
            "A put to a full queue drops items from the head until there is room, rather than being refused.",
        ),
    )
    keep_journal: bool = attrs.field(
        default=True,
        metadata=setting(
            "keepJournal", BOOLEAN, "Keep the items on disk. Without, they are gone when the server stops."
        ),
    )
    sync_journal_ms: int | None = attrs.field(
        default=None,
        metadata=setting(
            "syncJournal",
            optional(DURATION_OR_ZERO, "never"),
            "At most this much time of the journal is not on the disk itself yet (fsync). 0: the reply to a "
            "change waits until it is. Never: the operating system decides; what it still holds is lost when "
            "the machine crashes, but not when the server does.",
        ),
    )
    expire_to_queue: bytes | None = attrs.field(
        default=None,
        metadata=setting(
            "expireToQueue",
            optional(QUEUE_NAME),
            "Items that expire are put to that queue rather than dropped.",
        ),
    )
    max_expire_sweep: int | None = attrs.field(
        default=None,
        metadata=setting(
            "maxExpireSweep",
            optional(COUNT),
            "The most items that one sweep of the timer expires.",
        ),
    )
    max_redeliveries: int | None = attrs.field(
        default=None,
        metadata=setting(
            "maxRedeliveries",
            optional(COUNT),
            "An item that was aborted or timed out that often moves to errorQueue.",
        ),
    )
    error_queue: bytes | None = attrs.field(
        default=None,
        metadata=setting(
            "errorQueue",
            optional(QUEUE_NAME),
            "Where an item moves that was aborted or timed out maxRedeliveries times; it takes both settings.",
        ),
    )
    fanout_only: bool = attrs.field(
        default=False,
        metadata=setting(
            "fanoutOnly",
            BOOLEAN,
            "The queue keeps nothing itself: its items go to its children (name+child) alone.",
        ),
    )
    max_queue_age_ms: int | None = attrs.field(
        default=None,
        metadata=setting(
            "maxQueueAge",
            optional(DURATION),
            "An empty queue that is that old, counted from its creation or the server's start, is deleted.",
        ),
    )
    enable_trace: bool = attrs.field(
        default=False,
        metadata=setting(
            "enableTrace",
            BOOLEAN,
            "Log each opening, confirm and abort of a read of this queue.",
        ),
    )
    disable_aggressive_rewrites: bool = attrs.field(
        default=False,
        metadata=setting(
            "disableAggressiveRewrites",
            BOOLEAN,
            "Do not rewrite the journal of a queue that is empty but for many open reads again and again.",
        ),
    )
    open_transaction_timeout_ms: int | None = attrs.field(
        default=None,
        metadata=setting(
            "openTransactionTimeout",
            optional(DURATION),
            "An item that a client has held open for that long goes back to the head.",
        ),
    )
    white_list_client_id_for_enqueue: tuple[bytes, ...] | None = attrs.field(
        default=None,
        metadata=setting(
            "whiteListClientIdForEnqueue",
            optional(IDENTITIES),
            "Only these clients may put; none: all may; an empty list: nobody.",
        ),
    )
    white_list_client_id_for_dequeue: tuple[bytes, ...] | None = attrs.field(
        default=None,
        metadata=setting(
            "whiteListClientIdForDequeue",
            optional(IDENTITIES),
            "Only these clients may get; none: all may; an empty list: nobody.",
        ),
    )


@attrs.frozen
class QueueOverrides:
    """What one table of a file sets for a queue; whatever it does not set is inherited."""

    values: Mapping[str, Any] = attrs.field(factory=dict)
    """By the field's name in `QueueSettings`. A value that is there and None was set to "none"."""

    def over(self, inherited: QueueSettings) -> QueueSettings:
        """The inherited settings with these in place of theirs."""
        return attrs.evolve(inherited, **self.values) if self.values else inherited


@attrs.frozen(kw_only=True)
class AliasSettings:
    """A name that stands for one or more queues: a put to it goes to each of them."""

    name: bytes = attrs.field(
        metadata=setting("name", QUEUE_NAME, "The name that clients put to. It hides a queue of that name.")
    )
    destination_queues: tuple[bytes, ...] = attrs.field(
        metadata=setting("destinationQueues", QUEUE_NAMES, "Queues, fanout queues or further aliases.")
    )
