"""Seeds, dictionary words and repairs of requests: recorded conversations, and a call of each thrift method."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from kestrel.protocols import thrift_binary as binary

CONVERSATIONS: Final = Path(__file__).parents[1] / "conversations" / "conversations.json"

MAX_SEED_BYTES: Final = 1500
"""Maximum size of a conversation that is a seed."""


def conversations(group: str) -> dict[str, bytes]:
    """Return the bytes that the clients of each recorded conversation send."""
    found: dict[str, bytes] = defaultdict(bytes)
    for conversation in json.loads(CONVERSATIONS.read_text()):
        if conversation["group"] == group:
            sent = "".join(step.get("send", "") for step in conversation["steps"])
            if sent and len(sent) <= MAX_SEED_BYTES:
                found[file_name(conversation["name"])] += sent.encode("latin-1")
    return dict(found)


def file_name(name: str) -> str:
    """Return a file name for a conversation."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def thrift_calls() -> dict[str, bytes]:
    """Return a call of each method by name, and calls with unknown fields, types and methods."""
    queue = binary.binary_field(1, b"work")
    ids = binary.set_field(2, binary.I64, 2) + binary.i64(1) + binary.i64(1 << 40)
    items = binary.list_field(2, binary.STRING, 2) + binary.binary(b"one") + binary.binary(b"")
    unknown = (
        b"\x0c\x00\x09\x0d\x00\x01\x0b\x02\x00\x00\x00\x01\x00\x00\x00\x01k\x01\x0f\x00\x02\x0f\x00\x00\x00\x01"
        b"\x06\x00\x00\x00\x02\x00\x00\x00\x00\x00"
    )
    arguments = {
        b"put": queue + items + binary.i32_field(3, 5000),
        b"get": queue + binary.i32_field(2, 10) + binary.i32_field(3, 100) + binary.i32_field(4, 1000),
        b"confirm": queue + ids,
        b"abort": queue + ids,
        b"peek": queue,
        b"flush_queue": queue,
        b"flush_all_queues": b"",
        b"delete_queue": queue,
        b"current_status": b"",
        b"set_status": binary.i32_field(1, 2),
        b"get_version": b"",
    }
    calls = {}
    for seqid, (method, fields) in enumerate(arguments.items()):
        header = binary.header(method, binary.CALL, seqid, is_strict=bool(seqid % 2))
        calls[method.decode()] = binary.frame(header, fields, binary.END)
    calls["unknown"] = binary.frame(binary.header(b"peek", binary.CALL, 7), unknown, queue, binary.END)
    calls["oneway"] = binary.frame(binary.header(b"peek", binary.ONEWAY, 7), queue, binary.END)
    calls["no-method"] = binary.frame(binary.header(b"p\xff", binary.CALL, 7), binary.END)
    return calls


THRIFT_WORDS: Final = (
    b"put", b"get", b"confirm", b"abort", b"peek", b"flush_queue", b"flush_all_queues", b"delete_queue",
    b"current_status", b"set_status", b"get_version", b"\x80\x01\x00\x01", b"\x80\x01\x00\x04", b"\x0b\x00\x01",
    b"\x0f\x00\x02\x0b", b"\x0e\x00\x02\x0a", b"\x08\x00\x02", b"\x08\x00\x03", b"\x08\x00\x04", b"\x0c\x00\x09",
    b"\x0d\x00\x09\x0b\x0f", b"\x00\x00\x00\x04work", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff",
)  # fmt: skip

_STRICT_CALL: Final = b"\x80\x01\x00\x01"


def repaired_frames(data: bytes) -> bytes:
    """Return data with frame lengths that reach to the next strict call."""
    parts = data.split(_STRICT_CALL)
    for index in range(1, len(parts)):
        is_last = index == len(parts) - 1
        size = len(_STRICT_CALL) + len(parts[index]) - (0 if is_last else binary.LENGTH_BYTES)
        if len(parts[index - 1]) >= binary.LENGTH_BYTES and size >= 0:
            parts[index - 1] = parts[index - 1][: -binary.LENGTH_BYTES] + size.to_bytes(4, "big")
    return _STRICT_CALL.join(parts)
