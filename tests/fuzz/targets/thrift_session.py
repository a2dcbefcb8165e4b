"""Sessions of the thrift service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kestrel.net.codec_factories import CODEC_FACTORIES
from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.thrift import ThriftCall
from tests.fuzz import sessions, spoken
from tests.fuzz.fed import Fed, fed, mending
from tests.fuzz.sessions import CONFIGS, LATER, OTHER_CLIENT, SEND, check_session
from tests.fuzz.target import Target
from tests.protocols.command_values import parse_with

_CLIENT_TIMEOUT: Final = 2
"""The configuration that hangs up on clients that say nothing."""


def check(data: bytes) -> None:
    """Every call is answered, in order, in its own form, up to a get that was still waiting when its client left."""
    config, _ = sessions.choose(Fed(data))

    def check_replies(sent: bytes, received: bytes, is_all: bool) -> None:
        calls = [_repeated(command.call) for command in parse_with(CODEC_FACTORIES["thrift"](CONFIGS[config]), [sent])]
        replies = _replies_in(received, is_whole=is_all)
        assert replies == calls[: len(replies)]
        if is_all and config != _CLIENT_TIMEOUT and len(replies) < len(calls):
            assert calls[len(replies)][0] == b"get"

    check_session("thrift", data, check_replies)


def _repeated(call: ThriftCall) -> tuple[bytes, int, bool]:
    return call.name, call.seqid, call.is_strict


def _replies_in(received: bytes, *, is_whole: bool) -> list[tuple[bytes, int, bool]]:
    found = []
    while len(received) >= binary.LENGTH_BYTES:
        size = int.from_bytes(received[: binary.LENGTH_BYTES], "big")
        frame = received[binary.LENGTH_BYTES :][:size]
        if len(frame) < size:
            break
        header = binary.ThriftReader(frame).header()
        assert header.type in (binary.REPLY, binary.EXCEPTION)
        found.append((header.name, header.seqid, header.is_strict))
        received = received[binary.LENGTH_BYTES + size :]
    assert not (is_whole and received), "a reply came in part"
    return found


def seeds() -> Mapping[str, bytes]:
    calls = spoken.thrift_calls()
    every = b"".join(calls.values())
    held = calls["put"] + calls["get"] + calls["get"] + calls["confirm"] + calls["abort"]
    return {
        **{name: fed(said, place % 2, 0) for place, (name, said) in enumerate(calls.items())},
        "every": fed(every, 0, 3, SEND, 100, LATER, 20, SEND, 3),
        "limits": fed(every, 2, 3, SEND, 100, LATER, 20, SEND, 3),
        "held": fed(held, 1, 4, SEND, 200, LATER, 20, OTHER_CLIENT, 0, SEND, 3),
        "waits": fed(
            calls["get"] + calls["put"], 1, 4, SEND, len(calls["get"]) - 1, LATER, 0, OTHER_CLIENT, 0, SEND, 255
        ),
    }


TARGET = Target(check, seeds, lambda: spoken.THRIFT_WORDS, mending(sessions.choose, spoken.mended_frames))
