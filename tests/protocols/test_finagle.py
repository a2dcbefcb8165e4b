"""Thrift with what Finagle's clients put in front of messages: bytes in, commands and replies out."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel import commands, errors
from kestrel.commands import Command, Malformed
from kestrel.protocols.finagle import MAX_CLIENT_ID_BYTES, MAX_REQUEST_HEADER_BYTES
from kestrel.protocols.thrift import ThriftCodec
from tests.protocols.finagle_headers import request_header
from tests.protocols.test_thrift import END, WORK, codec_of, exception_in, one, parse, strict, told

NAME = b"__can__finagle__trace__v3__"
UPGRADE = strict(NAME, END)
PEEK = strict(b"peek", WORK + END)[4:]


def client_id(name: bytes) -> bytes:
    """A header with nothing but that, by hand."""
    return b"\x0c\x00\x06" b"\x0b\x00\x01" + struct.pack(">i", len(name)) + name + END + END


def framed(*parts: bytes) -> bytes:
    message = b"".join(parts)
    return struct.pack(">i", len(message)) + message


def upgraded(max_frame_bytes: int = 1000) -> ThriftCodec:
    codec = codec_of(max_frame_bytes=max_frame_bytes)
    assert told(one(UPGRADE, codec)) == told(commands.Upgrade())
    return codec


def named(header: bytes) -> bytes | None:
    """Who a peek behind that header is from."""
    codec = upgraded(max_frame_bytes=100_000)
    assert told(one(framed(header, PEEK), codec)) == told(commands.Inspect(b"work"))
    return codec.client_id


def refused(codec: ThriftCodec, command: Command) -> tuple[bytes, int, str]:
    """What the answer begins with behind its length, and type and message of the exception."""
    assert isinstance(command, Malformed)
    reply, _ = codec.error(command, errors.ClientError(command.reason))
    assert int.from_bytes(reply[:4], "big") == len(reply) - 4
    return (reply[4:], *exception_in(reply))


def test_the_upgrade_is_answered_without_a_header() -> None:
    codec = codec_of()
    command = one(UPGRADE, codec)
    reply = b"\x80\x01\x00\x02\x00\x00\x00\x1b" + NAME + b"\x00\x00\x00\x07" + END
    assert codec.done(command) == framed(reply)


def test_from_then_on_each_reply_begins_with_an_empty_header() -> None:
    codec = upgraded()
    command = one(framed(END, strict(b"delete_queue", WORK + END)[4:]), codec)
    assert codec.done(command) == framed(
        b"\x00" b"\x80\x01\x00\x02\x00\x00\x00\x0cdelete_queue\x00\x00\x00\x07" b"\x00"
    )
    reply, closes = codec.error(command, errors.Unavailable("no"))
    assert reply[4:].startswith(b"\x00" b"\x80\x01\x00\x03\x00\x00\x00\x0cdelete_queue\x00\x00\x00\x07")
    assert not closes


def test_what_was_asked_before_is_answered_as_it_was_asked() -> None:
    codec = codec_of()
    before, _, after = parse(framed(PEEK) + UPGRADE + framed(END, PEEK), codec=codec)
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
        (b"\x0c\x00\x06" b"\x0a\x00\x01" + bytes(8) + END + END, None),
        (b"\x0c\x00\x06" b"\x0b\x00\x02\x00\x00\x00\x01x" + END + END, None),
    ],
)
def test_a_client_is_called_what_its_header_says(header: bytes, name: bytes | None) -> None:
    assert named(header) == name


@given(st.binary(max_size=MAX_CLIENT_ID_BYTES))
def test_any_name_is_read(name: bytes) -> None:
    assert named(client_id(name)) == name


def test_a_request_byte_by_byte() -> None:
    codec = upgraded()
    stream = framed(request_header("orders"), PEEK)
    assert parse(*(stream[at : at + 1] for at in range(len(stream) - 1)), codec=codec) == []
    assert told(one(stream[-1:], codec)) == told(commands.Inspect(b"work"))
    assert codec.client_id == b"orders"


def test_a_name_is_gone_with_the_next_request_that_has_none() -> None:
    codec = upgraded()
    assert codec.client_id is None
    one(framed(client_id(b"orders"), PEEK), codec)
    assert codec.client_id == b"orders"
    one(framed(END, PEEK), codec)
    assert codec.client_id is None


def test_without_an_upgrade_there_are_no_headers() -> None:
    command = one(framed(client_id(b"orders"), PEEK))
    assert isinstance(command, Malformed)
    assert command.closes


def test_a_second_upgrade_is_an_unknown_method() -> None:
    codec = upgraded()
    beginning, *why = refused(codec, one(framed(END, UPGRADE[4:]), codec))
    assert beginning.startswith(b"\x00\x80\x01\x00\x03")
    assert why == [1, f"unknown method: {NAME.decode()}"]


def test_options_of_the_upgrade_are_passed_over() -> None:
    assert told(one(strict(NAME, WORK + END))) == told(commands.Upgrade())


@pytest.mark.parametrize("options", [b"", b"\x0b", END + END], ids=["none", "cut short", "bytes behind"])
def test_an_upgrade_that_cannot_be_read_upgrades_nothing(options: bytes) -> None:
    codec = codec_of()
    assert refused(codec, one(strict(NAME, options), codec))[1] == 7
    assert told(one(framed(PEEK), codec)) == told(commands.Inspect(b"work"))


def test_a_message_without_its_header_ends_the_connection() -> None:
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
def test_a_header_that_cannot_be_read_ends_the_connection(header: bytes, why: str) -> None:
    codec = upgraded(max_frame_bytes=100_000)
    command = one(framed(header), codec)
    assert refused(codec, command)[1:] == (7, why)
    assert told(command)[:2] == (Malformed, True)
    assert parse(framed(END, PEEK), codec=codec) == []


def test_header_and_message_are_bounded_together() -> None:
    frame = framed(request_header("orders"), PEEK)
    assert told(one(frame, upgraded(len(frame) - 4))) == told(commands.Inspect(b"work"))
    assert told(one(frame, upgraded(len(frame) - 5)))[:2] == (Malformed, True)


def test_of_a_frame_over_the_bound_the_header_is_read_to_answer_its_message() -> None:
    codec = upgraded()
    beginning = struct.pack(">i", 1001) + request_header("orders") + strict(b"put", b"")[4:]
    assert parse(*(beginning[at : at + 1] for at in range(len(beginning) - 1)), codec=codec) == []
    answer, *why = refused(codec, one(beginning[-1:], codec))
    assert answer.startswith(b"\x00\x80\x01\x00\x03\x00\x00\x00\x03put\x00\x00\x00\x07")
    assert why == [6, "frame too large; limit=1000"]


def test_of_a_frame_over_the_bound_no_more_than_so_much_is_awaited() -> None:
    codec = upgraded()
    codec.receive(struct.pack(">i", 1 << 20) + b"\x0b\x00\x09\x00\x0f\x00\x00")
    size = 0
    while (command := codec.next_command()) is None:
        assert size <= MAX_REQUEST_HEADER_BYTES + 112
        codec.receive(b"x")
        size += 1
    answer, *why = refused(codec, command)
    assert answer.startswith(b"\x00\x80\x01\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00")
    assert why == [6, "frame too large; limit=1000"]


def test_the_largest_reply_has_room_for_its_header() -> None:
    codec = upgraded(max_frame_bytes=10_000)
    name = b"get"
    command = one(framed(END, strict(name, WORK + b"\x08\x00\x02\x00\x00\x00\x01" + END)[4:]), codec)
    assert isinstance(command, commands.GetMany)
    reply = codec.items(command, [(b"x" * (codec.max_reply_bytes - 32), 1)])
    assert len(reply) - 4 <= 10_000


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_any_bytes_behind_an_upgrade_are_commands_or_refused(data: bytes, cuts: list[int]) -> None:
    codec = upgraded()
    stream = framed(data) + framed(END, PEEK)
    at = 0
    for cut in [*sorted(cuts), len(stream)]:
        for command in parse(stream[at:cut], codec=codec):
            if isinstance(command, Malformed):
                refused(codec, command)
        at = max(at, cut)
