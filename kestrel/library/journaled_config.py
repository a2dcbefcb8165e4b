"""What a `JournaledQueue` and its readers go by, and the items that they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import attrs
from attrs.validators import and_, deep_mapping, ge, instance_of, is_callable, optional

from kestrel.config.model import QueueSettings
from kestrel.errors import BadQueueName
from kestrel.library.arguments import FolderPath
from kestrel.library.full_policy import FullPolicy

NAME_BYTES: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_-"
"""What the names of journaled queues and of their readers are made of: they stand in file names as they are."""

MAX_QUEUE_NAME_BYTES: Final = 180
"""A queue's name has no more of them,"""

MAX_QUEUE_AND_READER_NAME_BYTES: Final = 220
"""nor have a queue's and a reader's name together."""


class QueueItem(NamedTuple):
    """An item of a journaled queue. Times are milliseconds since the epoch."""

    id: int
    """Its number: from 1 on, the same for all readers, and never given twice in the life of the queue's files."""
    data: bytes
    add_ms: int
    expiry_ms: int = 0
    """When it expires; 0 is never, but for the reader's own `max_age_ms`."""
    errors: int = 0
    """How often it was given back (`Reader.unget`)."""


def check_queue(name: object) -> None:
    """Raise TypeError, or `BadQueueName`, unless a journaled queue can have that name."""
    _check(name, "a queue's name")
    assert isinstance(name, bytes)
    if not name:
        raise BadQueueName("a queue's name has at least one byte")
    if len(name) > MAX_QUEUE_NAME_BYTES:
        raise BadQueueName(f"a queue's name has at most {MAX_QUEUE_NAME_BYTES} bytes")


def check_reader(queue: bytes, name: object) -> None:
    """Raise TypeError, or `BadQueueName`, unless a reader of that queue can have that name."""
    _check(name, "a reader's name")
    assert isinstance(name, bytes)
    if len(queue) + len(name) > MAX_QUEUE_AND_READER_NAME_BYTES:
        raise BadQueueName(
            f"the names of a queue and its reader have at most {MAX_QUEUE_AND_READER_NAME_BYTES} bytes together"
        )


def _check(name: object, what: str) -> None:
    if not isinstance(name, bytes):
        raise TypeError(f"{what} is bytes, as in b'work', and not {name!r}")
    if name.translate(None, NAME_BYTES):
        raise BadQueueName(f"{what} is made of letters, digits, ':', '_' and '-', and not {name!r}")


_NUMBER: Final = and_(instance_of(int), ge(0))
_NUMBER_OR_NONE: Final = optional(_NUMBER)
_HOOK: Final = optional(is_callable())


@attrs.frozen(kw_only=True)
class JournaledQueueReaderConfig:
    """What one reader goes by; a value that makes no sense is a TypeError or ValueError.

    Hooks are called on the reactor's thread; one that raises is named in the log.
    """

    max_items: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """How many items it holds, open ones counted, before it is full; None: any number."""
    max_size_bytes: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """How much data it holds, likewise."""
    full_policy: FullPolicy = attrs.field(default=FullPolicy.REFUSE_PUTS, validator=instance_of(FullPolicy))
    """What a put does when it is full. If one reader refuses it, no reader gets the item."""
    max_memory_size_bytes: int = attrs.field(default=QueueSettings().max_memory_size_bytes, validator=_NUMBER)
    """No more of its data is in memory than this, 256 KiB, or one item; beside its open reads."""
    max_age_ms: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """An item expires when it is that old, or earlier if it says so itself."""
    max_expire_sweep: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """How many items one `discard_expired` discards at most; None: all that have expired."""
    process_expired_item: Callable[[QueueItem], object] | None = attrs.field(default=None, validator=_HOOK)
    """Is given each item that has expired, right before it is gone."""
    error_handler: Callable[[QueueItem], bool] | None = attrs.field(default=None, validator=_HOOK)
    """Is given each item that is given back, with that error counted. True: the handler has taken care of it, and it is
    gone. False: it is for the next consumer."""
    max_queue_age_ms: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """A reader that is older and has nothing more to give `is_ready_for_expiration`."""
    delivery_latency: Callable[[Any, int], object] | None = attrs.field(default=None, validator=_HOOK)
    """Is told, with the reader, how many ms an item had waited that is given to a consumer."""
    timeout_latency: Callable[[Any, int], object] | None = attrs.field(default=None, validator=_HOOK)
    """Is told, with the reader, how many ms a consumer had waited that is given nothing."""


@attrs.frozen(kw_only=True)
class JournaledQueueConfig:
    """What a journaled queue goes by; values are checked likewise."""

    name: bytes
    """Letters, digits, ``:``, ``_`` and ``-``."""
    journaled: bool = True
    """False: it is in memory alone, and gone with the process."""
    max_item_size_bytes: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """A put of a larger item is refused. No journal takes one of more than 16 MiB."""
    journal_size_bytes: int = attrs.field(default=QueueSettings().default_journal_size_bytes, validator=_NUMBER)
    """How large a journal file becomes before another one is begun."""
    sync_journal_ms: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """How soon a change is on the disk itself: None when the system likes, 0 before anybody is told that it is safe."""
    save_archived_journals: FolderPath | None = None
    """The folder that journal files go to when no reader needs them any more; None: they are erased."""
    reader_configs: Mapping[bytes, JournaledQueueReaderConfig] = attrs.field(
        factory=dict, validator=deep_mapping(instance_of(bytes), instance_of(JournaledQueueReaderConfig))
    )
    """By name, the readers that do not go by `default_reader_config`."""
    default_reader_config: JournaledQueueReaderConfig = attrs.field(
        factory=JournaledQueueReaderConfig, validator=instance_of(JournaledQueueReaderConfig)
    )

    def __attrs_post_init__(self) -> None:
        check_queue(self.name)
        for reader in self.reader_configs:
            check_reader(self.name, reader)

    def reader_config(self, name: bytes) -> JournaledQueueReaderConfig:
        """What the reader of that name goes by."""
        return self.reader_configs.get(name, self.default_reader_config)

    def settings_for(self, reader: bytes) -> QueueSettings:
        """What the storage of that reader goes by."""
        return QueueSettings(
            default_journal_size_bytes=self.journal_size_bytes,
            sync_journal_ms=self.sync_journal_ms,
            max_memory_size_bytes=self.reader_config(reader).max_memory_size_bytes,
        )
