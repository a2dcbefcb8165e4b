"""The rules for queue names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kestrel.errors import BadQueueName

MAX_NAME_BYTES: Final = 200
"""Limit of a name in bytes, since a file name must hold the name and its suffixes."""

DELAYED_QUEUE: Final = b"+delayed"
"""Name of the hidden queue of all delayed items. Clients cannot use it."""

_LEGAL: Final = re.compile(rb"[^/~.\s\x00-\x1f\x7f]+")


def check_queue_name(name: bytes) -> None:
    """Raise `BadQueueName` with the reason unless `name` is a valid queue name.

    A name has 1 to 200 bytes, without ``/``, ``~``, ``.``, white space and control characters. The name ``+`` is
    invalid.
    """
    if not name:
        raise BadQueueName("queue name required")
    if len(name) > MAX_NAME_BYTES:
        raise BadQueueName(f"a queue name cannot be longer than {MAX_NAME_BYTES} bytes")
    if name == b"+":
        raise BadQueueName('a queue cannot be called "+", which stands between a parent and its child')
    if _LEGAL.fullmatch(name) is None:
        raise BadQueueName("a queue name cannot hold / ~ . white space or control characters")


def parent_of(name: bytes) -> bytes | None:
    """Return the parent of a fanout child, which is the name before the first ``+``. None for other queues."""
    parent, plus, _ = name.partition(b"+")
    return parent if parent and plus else None


def children_among(names: Iterable[bytes], parent: bytes) -> list[bytes]:
    """Return the names of children of `parent`, sorted."""
    return sorted(name for name in names if parent_of(name) == parent)
