"""Sessions of the thrift service."""

from __future__ import annotations

from typing import Final

from kestrel.net.queue_server import CODEC_FACTORIES
from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.thrift import ThriftCall
from tests.fuzz import sessions
from tests.fuzz.choices import Choices, repairing
from tests.fuzz.sessions import CONFIGS, check_session
from tests.fuzz.target import Target
from tests.fuzz.targets import thrift
from tests.protocols.command_values import parse_with

_CONFIG_WITH_TIMEOUT: Final = 2
"""Index of the configuration that disconnects idle clients."""


def check(data: bytes) -> None:
    """Check that every call has a reply, in order and in its form, except a get that waits when its client leaves."""
    config, _ = sessions.choose(Choices(data))

    def check_replies(sent: bytes, received: bytes, is_all: bool) -> None:
        calls = [_repeated(command.call) for command in parse_with(CODEC_FACTORIES["thrift"](CONFIGS[config]), [sent])]
        replies = _replies_in(received, is_whole=is_all)
        assert replies == calls[: len(replies)]
        if is_all and config != _CONFIG_WITH_TIMEOUT and len(replies) < len(calls):
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
    assert not (is_whole and received), "a reply is incomplete"
    return found


TARGET = Target(check, lambda: thrift.WORDS, repairing(sessions.choose, thrift.repaired))
