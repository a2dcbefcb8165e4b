"""What a queue in a configuration file may be called."""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 200
"""Bytes. A file name must hold the queue's name and a suffix."""

_LEGAL: Final = re.compile(rb"[^/~.\s\x00-\x1f\x7f]+")


def parse_queue_name(text: str) -> bytes:
    """The name as UTF-8. Raises `ValueError` with the reason when no queue can have it.

    Bytes but ``/``, ``~``, ``.``, white space and control characters; 1 to 200 of them; not a lone ``+``. The
    same rule holds for what clients name.
    """
    name = text.encode()
    if not name:
        raise ValueError("a queue's name cannot be empty")
    if len(name) > LONGEST:
        raise ValueError(f"a queue's name cannot be longer than {LONGEST} bytes")
    if name == b"+":
        raise ValueError('a queue cannot be called "+", which stands between a parent and its child')
    if not _LEGAL.fullmatch(name):
        raise ValueError("a queue's name cannot hold / ~ . white space or control characters")
    return name


def parent_of(name: bytes) -> bytes | None:
    """The fanout queue that this one is a child of, which stands before the first ``+``; None for others."""
    parent, plus, _ = name.partition(b"+")
    return parent if parent and plus else None
