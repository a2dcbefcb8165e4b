"""The thrift codec with the headers that Finagle's clients send before messages."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel import commands, errors
from kestrel.commands import Command, Malformed
from kestrel.protocols.thrift import MAX_CLIENT_ID_BYTES, MAX_REQUEST_HEADER_BYTES, ThriftCodec
from tests.protocols.command_values import byte_by_byte, cut_at, values_of
from tests.protocols.finagle_headers import request_header
from tests.protocols.test_thrift import END, WORK, codec_of, exception_in, framed, one, parse, strict

NAME = b"__can__finagle__trace__v3__"
UPGRADE = strict(NAME, END)
PEEK = strict(b"peek", WORK + END)[4:]


def client_id(name: bytes) -> bytes:
    """Return a hand-written header with only this client name."""
    return b"\x0c\x00\x06\x0b\x00\x01" + struct.pack(">i", len(name)) + name + END + END


def upgraded(max_frame_bytes: int = 1000) -> ThriftCodec:
    codec = codec_of(max_frame_bytes=max_frame_bytes)
    assert values_of(one(UPGRADE, codec)) == values_of(commands.Upgrade())
    return codec


def named(header: bytes) -> bytes | None:
    """Return the client name of a peek behind this header."""
    codec = upgraded(max_frame_bytes=100_000)
    assert values_of(one(framed(header + PEEK), codec)) == values_of(commands.Inspect(b"work"))
    return codec.client_id


def refused(codec: ThriftCodec, command: Command) -> tuple[bytes, int, str]:
    """Return the start of the reply behind its length, and the type and message of the exception."""
    assert isinstance(command, Malformed)
    reply, _ = codec.error(command, errors.ClientError(command.reason))
    assert int.from_bytes(reply[:4], "big") == len(reply) - 4
    return (reply[4:], *exception_in(reply))


def test_upgrade_is_answered_without_a_header() -> None:
    codec = codec_of()
    command = one(UPGRADE, codec)
    reply = b"\x80\x01\x00\x02\x00\x00\x00\x1b" + NAME + b"\x00\x00\x00\x07" + END
    assert codec.done(command) == framed(reply)


def test_replies_after_upgrade_begin_with_empty_header() -> None:
    codec = upgraded()
    command = one(framed(END + strict(b"delete_queue", WORK + END)[4:]), codec)
    assert codec.done(command) == framed(b"\x00\x80\x01\x00\x02\x00\x00\x00\x0cdelete_queue\x00\x00\x00\x07\x00")
    reply, closes = codec.error(command, errors.Unavailable("no"))
    assert reply[4:].startswith(b"\x00\x80\x01\x00\x03\x00\x00\x00\x0cdelete_queue\x00\x00\x00\x07")
    assert not closes


def test_request_before_upgrade_is_answered_without_header() -> None:
    codec = codec_of()
    before, _, after = parse(framed(PEEK) + UPGRADE + framed(END + PEEK), codec=codec)
    assert codec.number(before, 1)[4:] == codec.number(after, 1)[5:]
    assert codec.number(before, 1)[4:5] == b"\x80"
    assert codec.number(after, 1)[4:6] == b"\x00\x80"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (END, None),
        (client_id(b"orders"), b"orders"),
        (client_id(b""), b""),
        (client_id(b"\xff\x00\n"), b"\xff\x00\n"),
        (client_id(b"n" * MAX_CLIENT_ID_BYTES), b"n" * MAX_CLIENT_ID_BYTES),
        (client_id(b"n" * (MAX_CLIENT_ID_BYTES + 1)), None),
        (request_header("orders"), b"orders"),
        (request_header("\N{SNOWMAN}"), b"\xe2\x98\x83"),
        (request_header(), None),
        (b"\x0c\x00\x06" + END + END, None),
        # another type at 6, and a ClientId elsewhere; another type at 1 of a ClientId
        (b"\x0b\x00\x06\x00\x00\x00\x06orders" + END, None),
        (b"\x0c\x00\x07" + client_id(b"orders")[3:], None),
        (b"\x0c\x00\x06\x0a\x00\x01" + bytes(8) + END + END, None),
        (b"\x0c\x00\x06\x0b\x00\x02\x00\x00\x00\x01x" + END + END, None),
    ],
)
def test_client_name_comes_from_the_header(header: bytes, name: bytes | None) -> None:
    assert named(header) == name


def test_request_byte_by_byte_is_read() -> None:
    codec = upgraded()
    stream = framed(request_header("orders") + PEEK)
    assert parse(*byte_by_byte(stream[:-1]), codec=codec) == []
    assert values_of(one(stream[-1:], codec)) == values_of(commands.Inspect(b"work"))
    assert codec.client_id == b"orders"


def test_name_applies_only_to_its_own_request() -> None:
    codec = upgraded()
    assert codec.client_id is None
    one(framed(client_id(b"orders") + PEEK), codec)
    assert codec.client_id == b"orders"
    one(framed(END + PEEK), codec)
    assert codec.client_id is None


def test_headers_need_an_upgrade() -> None:
    command = one(framed(client_id(b"orders") + PEEK))
    assert isinstance(command, Malformed)
    assert command.closes


def test_second_upgrade_is_an_unknown_method() -> None:
    codec = upgraded()
    beginning, *why = refused(codec, one(framed(END + UPGRADE[4:]), codec))
    assert beginning.startswith(b"\x00\x80\x01\x00\x03")
    assert why == [1, f"unknown method: {NAME.decode()}"]


def test_options_of_the_upgrade_are_ignored() -> None:
    assert values_of(one(strict(NAME, WORK + END))) == values_of(commands.Upgrade())


@pytest.mark.parametrize("options", [b"", b"\x0b", END + END], ids=["none", "cut short", "bytes behind"])
def test_unreadable_upgrade_does_not_upgrade(options: bytes) -> None:
    codec = codec_of()
    assert refused(codec, one(strict(NAME, options), codec))[1] == 7
    assert values_of(one(framed(PEEK), codec)) == values_of(commands.Inspect(b"work"))


def test_message_without_header_ends_the_connection() -> None:
    codec = upgraded()
    command = one(framed(PEEK), codec)
    beginning, type_, _ = refused(codec, command)
    assert isinstance(command, Malformed)
    assert command.closes
    assert beginning.startswith(b"\x00\x80\x01\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00")
    assert type_ == 7


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"\x0c\x00\x06" * 3 + END, "the message ends too soon"),
        (b"\x0b\x00\x09\x7f\xff\xff\xff", "the message ends too soon"),
        (b"\x0c\x00\x63" * 70 + END * 71, "structs or containers are nested too deeply; limit=64"),
        (b"\x03\x00\x01x" * 10_001 + END, "too many unknown values; limit=10000"),
        (b"\x09\x00\x01" + END, "9 is not the number of a type"),
    ],
    ids=["cut short", "endless", "deep", "many", "no type"],
)
def test_unreadable_header_ends_the_connection(header: bytes, why: str) -> None:
    codec = upgraded(max_frame_bytes=100_000)
    command = one(framed(header), codec)
    assert refused(codec, command)[1:] == (7, why)
    assert values_of(command) == values_of(Malformed(why, closes=True))
    assert parse(framed(END + PEEK), codec=codec) == []


def test_limit_applies_to_header_and_message_together() -> None:
    frame = framed(request_header("orders") + PEEK)
    assert values_of(one(frame, upgraded(len(frame) - 4))) == values_of(commands.Inspect(b"work"))
    limit = len(frame) - 5
    too_large = Malformed(f"frame too large; limit={limit}", closes=True)
    assert values_of(one(frame, upgraded(limit))) == values_of(too_large)


def test_header_of_too_large_frame_is_read_to_answer_it() -> None:
    codec = upgraded()
    beginning = struct.pack(">i", 1001) + request_header("orders") + strict(b"put", b"")[4:]
    assert parse(*byte_by_byte(beginning[:-1]), codec=codec) == []
    answer, *why = refused(codec, one(beginning[-1:], codec))
    assert answer.startswith(b"\x00\x80\x01\x00\x03\x00\x00\x00\x03put\x00\x00\x00\x07")
    assert why == [6, "frame too large; limit=1000"]


def test_too_large_frame_is_awaited_only_up_to_a_bound() -> None:
    codec = upgraded()
    codec.buffer.receive(struct.pack(">i", 1 << 20) + b"\x0b\x00\x09\x00\x0f\x00\x00")
    size = 0
    while (command := codec.next_command()) is None:
        assert size <= MAX_REQUEST_HEADER_BYTES + 112
        codec.buffer.receive(b"x")
        size += 1
    answer, *why = refused(codec, command)
    assert answer.startswith(b"\x00\x80\x01\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00")
    assert why == [6, "frame too large; limit=1000"]


def test_largest_reply_has_room_for_its_header() -> None:
    codec = upgraded(max_frame_bytes=10_000)
    name = b"get"
    command = one(framed(END + strict(name, WORK + b"\x08\x00\x02\x00\x00\x00\x01" + END)[4:]), codec)
    assert isinstance(command, commands.GetMany)
    reply = codec.items(command, [(b"x" * (codec.max_reply_bytes - 32), 1)])
    assert len(reply) - 4 <= 10_000


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_any_bytes_after_upgrade_are_commands_or_refused(data: bytes, cuts: list[int]) -> None:
    codec = upgraded()
    for command in parse(*cut_at(framed(data) + framed(END + PEEK), cuts), codec=codec):
        if isinstance(command, Malformed):
            refused(codec, command)
