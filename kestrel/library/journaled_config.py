"""The configuration of a `JournaledQueue` and its readers, and the items that they deliver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import attrs
from attrs.validators import and_, deep_mapping, ge, instance_of, is_callable, optional

from kestrel.config.model import QueueSettings
from kestrel.errors import BadQueueName
from kestrel.library.concurrent_blocking_queue import FullPolicy
from kestrel.library.folder import FolderPath

NAME_BYTES: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_-"
"""Bytes allowed in the names of journaled queues and readers, which are used unescaped in file names."""

MAX_QUEUE_NAME_BYTES: Final = 180
"""Maximum length of a queue's name."""

MAX_QUEUE_AND_READER_NAME_BYTES: Final = 220
"""Maximum length of a queue's and a reader's name together."""


class QueueItem(NamedTuple):
    """An item of a journaled queue. Times are milliseconds since the epoch."""

    id: int
    """Number of the item, from 1, equal for all readers and never reused while the queue's files exist."""
    data: bytes
    add_ms: int
    expiry_ms: int = 0
    """Time at which the item expires; with 0 only the reader's `max_age_ms` applies."""
    errors: int = 0
    """Number of times the item was returned with `Reader.unget`."""


def check_queue(name: object) -> None:
    """Raise TypeError or `BadQueueName` unless `name` is a valid name for a journaled queue."""
    _check(name, "a queue's name")
    assert isinstance(name, bytes)
    if not name:
        raise BadQueueName("a queue's name must not be empty")
    if len(name) > MAX_QUEUE_NAME_BYTES:
        raise BadQueueName(f"a queue's name must have at most {MAX_QUEUE_NAME_BYTES} bytes")


def check_reader(queue: bytes, name: object) -> None:
    """Raise TypeError or `BadQueueName` unless `name` is a valid name for a reader of `queue`."""
    _check(name, "a reader's name")
    assert isinstance(name, bytes)
    if len(queue) + len(name) > MAX_QUEUE_AND_READER_NAME_BYTES:
        raise BadQueueName(
            f"the names of a queue and its reader must have at most {MAX_QUEUE_AND_READER_NAME_BYTES} bytes together"
        )


def _check(name: object, what: str) -> None:
    if not isinstance(name, bytes):
        raise TypeError(f"{what} must be bytes, such as b'work', not {name!r}")
    if name.translate(None, NAME_BYTES):
        raise BadQueueName(f"{what} may only contain letters, digits, ':', '_' and '-', not {name!r}")


_NUMBER: Final = and_(instance_of(int), ge(0))
_NUMBER_OR_NONE: Final = optional(_NUMBER)
_HOOK: Final = optional(is_callable())


@attrs.frozen(kw_only=True)
class JournaledQueueReaderConfig:
    """The configuration of a reader. Invalid values raise TypeError or ValueError.

    Hooks are called on the reactor's thread. An exception in a hook is logged.
    """

    max_items: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """Number of items, including open reads, at which the reader is full; None: no limit."""
    max_size_bytes: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """Bytes of data, including open reads, at which the reader is full; None: no limit."""
    full_policy: FullPolicy = attrs.field(default=FullPolicy.REFUSE_PUTS, validator=instance_of(FullPolicy))
    """Action of a put when the reader is full. If one reader refuses an item, no reader gets it."""
    max_memory_size_bytes: int = attrs.field(default=QueueSettings().max_memory_size_bytes, validator=_NUMBER)
    """Maximum bytes of data in memory, without open reads. The effective limit is at least 256 KiB and at least one
    item.
    """
    max_age_ms: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """Age at which an item expires, unless its own expiry is earlier."""
    max_expire_sweep: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """Maximum number of items that one `discard_expired` discards; None: no limit."""
    process_expired_item: Callable[[QueueItem], object] | None = attrs.field(default=None, validator=_HOOK)
    """Called with each expired item before its removal is committed."""
    error_handler: Callable[[QueueItem], bool] | None = attrs.field(default=None, validator=_HOOK)
    """Called with each item returned with `unget`, with its errors already increased. If it returns True the item is
    removed, otherwise the next consumer gets it.
    """
    max_queue_age_ms: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """Age of the reader after which `is_ready_for_expiration` is True if it has no items."""
    delivery_latency: Callable[[Any, int], object] | None = attrs.field(default=None, validator=_HOOK)
    """Called with the reader and the ms that a delivered item was in the queue."""
    timeout_latency: Callable[[Any, int], object] | None = attrs.field(default=None, validator=_HOOK)
    """Called with the reader and the ms that a consumer waited, if it got no item."""


@attrs.frozen(kw_only=True)
class JournaledQueueConfig:
    """The configuration of a journaled queue. Invalid values raise TypeError or ValueError."""

    name: bytes
    """Letters, digits, ``:``, ``_`` and ``-``."""
    journaled: bool = True
    """False: the queue is kept in memory only and lost when the process ends."""
    max_item_size_bytes: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """Size above which a put is refused. A journal cannot store items of more than 16 MiB."""
    journal_size_bytes: int = attrs.field(default=QueueSettings().default_journal_size_bytes, validator=_NUMBER)
    """Size at which the queue starts a new journal file."""
    sync_journal_ms: int | None = attrs.field(default=None, validator=_NUMBER_OR_NONE)
    """Maximum time until a change is on the disk. None: the operating system decides. 0: before it is reported as safe.
    """
    save_archived_journals: FolderPath | None = None
    """Folder that receives journal files when no reader needs them; None: they are deleted."""
    reader_configs: Mapping[bytes, JournaledQueueReaderConfig] = attrs.field(
        factory=dict, validator=deep_mapping(instance_of(bytes), instance_of(JournaledQueueReaderConfig))
    )
    """Configurations by reader name, for readers that do not use `default_reader_config`."""
    default_reader_config: JournaledQueueReaderConfig = attrs.field(
        factory=JournaledQueueReaderConfig, validator=instance_of(JournaledQueueReaderConfig)
    )

    def __attrs_post_init__(self) -> None:
        check_queue(self.name)
        for reader in self.reader_configs:
            check_reader(self.name, reader)

    def reader_config(self, name: bytes) -> JournaledQueueReaderConfig:
        return self.reader_configs.get(name, self.default_reader_config)

    def stored_name(self, reader: bytes) -> bytes:
        """Return the name of a reader's store."""
        return self.name + b"+" + reader if reader else self.name

    def settings_for(self, reader: bytes) -> QueueSettings:
        config = self.reader_config(reader)
        return QueueSettings(
            max_items=config.max_items,
            max_size_bytes=config.max_size_bytes,
            max_item_size_bytes=self.max_item_size_bytes,
            max_age_ms=config.max_age_ms,
            discard_old_when_full=config.full_policy is FullPolicy.DROP_OLDEST,
            default_journal_size_bytes=self.journal_size_bytes,
            sync_journal_ms=self.sync_journal_ms,
            max_memory_size_bytes=config.max_memory_size_bytes,
        )
