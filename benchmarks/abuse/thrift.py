"""Thrift frames that announce more data than they have, or are deeply nested."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final

from benchmarks.abuse.abuse_process import Place


def _call(method: bytes, fields: bytes) -> bytes:
    message = struct.pack(">II", 0x8001_0001, len(method)) + method + struct.pack(">I", 1) + fields
    return struct.pack(">I", len(message)) + message


_NAME: Final = b"\x0b\0\1" + struct.pack(">I", 4) + b"work"

FRAMES: Final = (
    struct.pack(">I", 2**31 - 1) + b"\x80\1\0\1",  # a frame of 2 GB
    struct.pack(">I", 2**32 - 1) + b"\x80\1\0\1",
    _call(b"put", _NAME + b"\x0f\0\2" + struct.pack(">bi", 11, 2**31 - 1)),  # a list of two billion strings
    _call(b"put", _NAME + b"\x0f\0\2" + struct.pack(">bi", 11, 1_000_000) + bytes(4_000_000) + b"\0"),
    _call(b"confirm", _NAME + b"\x0e\0\2" + struct.pack(">bi", 10, 500_000) + bytes(4_000_000) + b"\0"),
    _call(b"get", b"\x0c\0\x63" * 100_000),  # nested structs
    _call(b"get", b"\x0f\0\x63" + b"\x0f\0\0\0\1" * 100_000),  # nested lists
    _call(b"get", b"\x0f\0\x63" + struct.pack(">bi", 12, 1_000_000) + bytes(1_000_000) + b"\0"),  # empty structs
    _call(b"x" * 1_000_000, b"\0"),
    _call(b"put", _NAME + b"\x0f\0\2" + struct.pack(">bi", 11, -1)),
)


def monstrous_frames(place: Place) -> None:
    """Send one random frame on each connection."""
    while place.goes_on():
        frame = place.dice.choice(FRAMES)
        with place.connect("thrift") as client, suppress(ConnectionError):
            client.send(frame)
            client.stop_sending()
            place.fates["refused with a message" if client.to_the_end() else "disconnected"] += 1
            continue
        place.fates["disconnected"] += 1
