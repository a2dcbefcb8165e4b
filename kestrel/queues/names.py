"""What a queue may be called."""

from __future__ import annotations

import re
from typing import Final

from kestrel.errors import BadQueueName

MAX_NAME_BYTES: Final = 200
"""A file name must hold the name and its suffixes."""

_LEGAL: Final = re.compile(rb"[^/~.\s\x00-\x1f\x7f]+", re.DOTALL)


def check_queue_name(name: bytes) -> None:
    """Raise `BadQueueName` with the reason unless a queue can have that name.

    Bytes but ``/``, ``~``, ``.``, white space and control characters; 1 to 200 of them; not ``+`` alone, which
    would be a fanout queue's child without a parent and a name.
    """
    if not name:
        raise BadQueueName("queue name required")
    if len(name) > MAX_NAME_BYTES:
        raise BadQueueName(f"queue name is longer than {MAX_NAME_BYTES} bytes")
    if name == b"+" or _LEGAL.fullmatch(name) is None:
        raise BadQueueName("queue name is illegal: it must not hold / ~ . white space or control characters")
