"""The thrift codec: frames to commands, and results to frames, without connections or queues."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

import pytest

from kestrel import commands, errors
from kestrel.commands import Command, Malformed
from kestrel.protocols import thrift
from kestrel.protocols.codec import ITEM_OVERHEAD_BYTES, Codec, QueueInfo
from kestrel.protocols.thrift import ThriftCodec
from tests.costs import Work, peak_bytes
from tests.protocols.command_values import (
    MANY_BYTES,
    byte_by_byte,
    drain,
    parse_with,
    small_pieces_cost_the_same_behind_much,
    values_of,
)

MAX_FRAME_BYTES, MAX_ITEM_BYTES, MAX_LIST_SIZE = 1000, 200, 8


def codec_of(
    max_frame_bytes: int = MAX_FRAME_BYTES, max_item_bytes: int = MAX_ITEM_BYTES, max_list_size: int = MAX_LIST_SIZE
) -> ThriftCodec:
    return ThriftCodec(max_frame_bytes, max_item_bytes, max_list_size)


def parse(*pieces: bytes, codec: ThriftCodec | None = None) -> list[Command]:
    return parse_with(codec_of() if codec is None else codec, pieces)


def one(stream: bytes, codec: ThriftCodec | None = None) -> Command:
    [command] = parse(stream, codec=codec)
    return command


# Hand-written bytes. A message is a header and a struct; a frame is a length and a message.


def framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


def strict(name: bytes, struct_bytes: bytes, *, type_: int = 1, seqid: int = 7) -> bytes:
    """Return a message in the strict form, which begins with a version."""
    return framed(struct.pack(">Hhi", 0x8001, type_, len(name)) + name + struct.pack(">i", seqid) + struct_bytes)


def loose(name: bytes, struct_bytes: bytes, *, type_: int = 1, seqid: int = 7) -> bytes:
    """Return a message in the loose form, which has no version."""
    return framed(struct.pack(">i", len(name)) + name + struct.pack(">bi", type_, seqid) + struct_bytes)


Form = Callable[..., bytes]

FORMS = pytest.mark.parametrize("form", [strict, loose])

WORK = b"\x0b\x00\x01\x00\x00\x00\x04work"
ITEMS = b"\x0f\x00\x02\x0b\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x03\x00\xffc"
IDS = b"\x0e\x00\x02\x0a\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x01\x00\x00\x00\x00"
MAX_ITEMS_10 = b"\x08\x00\x02\x00\x00\x00\x0a"
END = b"\x00"


def put(expiry_ms: int, *items: bytes) -> Command:
    return commands.Put(b"work", list(items), expiry_ms, True, stops_at_refusal=True)


REQUESTS: list[tuple[bytes, bytes, Command]] = [
    # method, arguments, command
    (b"put", WORK + ITEMS + b"\x08\x00\x03\x00\x00\x13\x88" + END, put(5000, b"a", b"\x00\xffc")),
    (b"put", WORK + ITEMS + b"\x08\x00\x03\x00\x00\x00\x00" + END, put(0, b"a", b"\x00\xffc")),
    (b"put", WORK + ITEMS + b"\x08\x00\x03\xff\xff\xff\xff" + END, put(-1, b"a", b"\x00\xffc")),
    (b"put", WORK + ITEMS + END, put(0, b"a", b"\x00\xffc")),
    (b"put", b"\x08\x00\x03\x00\x00\x00\x09" + ITEMS + WORK + END, put(9, b"a", b"\x00\xffc")),
    (b"put", WORK + b"\x0f\x00\x02\x0b\x00\x00\x00\x00" + END, put(0)),
    (b"put", WORK + b"\x0f\x00\x02\x00\x00\x00\x00\x00" + END, put(0)),
    (b"put", WORK + b"\x0f\x00\x02\x0b\x00\x00\x00\x01\x00\x00\x00\x00" + END, put(0, b"")),
    (
        b"put",
        b"\x0b\x00\x01\x00\x00\x00\x03\xff\x00+" + ITEMS + END,
        commands.Put(b"\xff\x00+", [b"a", b"\x00\xffc"], 0, True, stops_at_refusal=True),
    ),
    (
        b"put_delayed",
        WORK + ITEMS + b"\x0a\x00\x03\x00\x00\x00\x00\x00\x00\x13\x88" + END,
        commands.DelayedPut(b"work", [b"a", b"\x00\xffc"], 0, True, 5000, stops_at_refusal=True),
    ),
    (
        b"get",
        WORK + MAX_ITEMS_10 + b"\x08\x00\x03\x00\x00\x01\x00" + b"\x08\x00\x04\x00\x01\x00\x00" + END,
        commands.GetMany(b"work", 10, 256, 65536),
    ),
    (b"get", WORK + MAX_ITEMS_10 + END, commands.GetMany(b"work", 10, 0, 0)),
    (b"get", WORK + b"\x08\x00\x02\xff\xff\xff\xff" + END, commands.GetMany(b"work", -1, 0, 0)),
    (b"confirm", WORK + IDS + END, commands.ConfirmIds(b"work", {5, 1 << 32})),
    (b"confirm", WORK + b"\x0e\x00\x02\x0a\x00\x00\x00\x00" + END, commands.ConfirmIds(b"work", set())),
    (b"abort", WORK + IDS + END, commands.AbortIds(b"work", {5, 1 << 32})),
    (b"peek", WORK + END, commands.Inspect(b"work")),
    (b"peek", b"\x0b\x00\x01\x00\x00\x00\x00" + END, commands.Inspect(b"")),
    (b"list_queues", END, commands.ListQueues()),
    (b"flush_queue", WORK + END, commands.Flush(b"work")),
    (b"flush_all_queues", END, commands.FlushAll()),
    (b"delete_queue", WORK + END, commands.Delete(b"work")),
    (b"current_status", END, commands.Status()),
    (b"set_status", b"\x08\x00\x01\x00\x00\x00\x01" + END, commands.Status(b"Quiescent")),
    (b"set_status", b"\x08\x00\x01\x00\x00\x00\x02" + END, commands.Status(b"ReadOnly")),
    (b"set_status", b"\x08\x00\x01\x00\x00\x00\x03" + END, commands.Status(b"Up")),
    (b"get_version", END, commands.Version()),
    # unknown fields, and known ones of another type, which count as unknown
    (b"get_version", WORK + ITEMS + IDS + END, commands.Version()),
    (b"peek", b"\x08\x00\x01\x00\x00\x00\x01" + WORK + END, commands.Inspect(b"work")),
    (b"peek", WORK + b"\x0b\x00\x00\x00\x00\x00\x01x" + END, commands.Inspect(b"work")),
    (b"peek", WORK + b"\x0b\xff\xff\x00\x00\x00\x01x" + END, commands.Inspect(b"work")),
    (
        b"peek",
        WORK + b"\x0c\x00\x09\x0d\x00\x01\x0b\x02\x00\x00\x00\x01\x00\x00\x00\x01k\x01\x00" + END,
        commands.Inspect(b"work"),
    ),
    (b"put", WORK + ITEMS + b"\x0a\x00\x03\x00\x00\x00\x00\x00\x00\x00\x01" + END, put(0, b"a", b"\x00\xffc")),
]

each_request = pytest.mark.parametrize(
    ("name", "arguments", "expected"), REQUESTS, ids=[f"{name.decode()}-{n}" for n, (name, _, _) in enumerate(REQUESTS)]
)


@each_request
@FORMS
def test_request_in_one_piece_is_read(form: Form, name: bytes, arguments: bytes, expected: Command) -> None:
    assert values_of(one(form(name, arguments))) == values_of(expected)


@each_request
@FORMS
def test_request_byte_by_byte_is_read(form: Form, name: bytes, arguments: bytes, expected: Command) -> None:
    pieces = byte_by_byte(form(name, arguments))
    codec = codec_of()
    assert parse(*pieces[:-1], codec=codec) == []
    assert values_of(one(pieces[-1], codec)) == values_of(expected)


@each_request
@FORMS
def test_request_with_following_bytes_is_read(form: Form, name: bytes, arguments: bytes, expected: Command) -> None:
    codec = codec_of()
    first, second = parse(form(name, arguments) + strict(b"peek", WORK + END) + b"\x00\x00", codec=codec)
    assert values_of(first) == values_of(expected)
    assert values_of(second) == values_of(commands.Inspect(b"work"))
    assert len(codec) == 2


@each_request
@FORMS
def test_truncated_arguments_are_a_protocol_error(form: Form, name: bytes, arguments: bytes, expected: Command) -> None:
    for size in range(len(arguments)):
        command = one(form(name, arguments[:size]))
        assert isinstance(command, Malformed)
        assert not command.closes
        assert refusal(command) == (7, command.reason)


# Refusals.


def refusal(command: Command) -> tuple[int, str]:
    """Return type and message of the TApplicationException for a malformed request, decoded by hand."""
    assert isinstance(command, Malformed)
    reply, _ = codec_of().error(command, errors.ClientError(command.reason))
    return exception_in(reply)


def exception_in(reply: bytes) -> tuple[int, str]:
    """Return type (field 2) and message (field 1) of the exception at the end of a reply."""
    reason_at = reply.rindex(b"\x0b\x00\x01") + 3
    size = int.from_bytes(reply[reason_at : reason_at + 4], "big")
    reason = reply[reason_at + 4 : reason_at + 4 + size]
    rest = reply[reason_at + 4 + size :]
    assert rest[:3] == b"\x08\x00\x02"
    assert rest[7:] == END
    return int.from_bytes(rest[3:7], "big"), reason.decode()


REFUSED: list[tuple[str, bytes, bytes, int, str]] = [
    # case, method, arguments, type, message
    ("unknown method", b"purge", END, 1, "unknown method: purge"),
    ("no method", b"", END, 1, "unknown method: "),
    ("a method of any bytes", b"\xff\n", WORK, 1, "unknown method: \\xff\n"),
    ("no name", b"put", ITEMS + END, 7, "the argument queue_name is missing"),
    ("no items", b"put", WORK + END, 7, "the argument items is missing"),
    ("no max_items", b"get", WORK + END, 7, "the argument max_items is missing"),
    ("no ids", b"confirm", WORK + END, 7, "the argument ids is missing"),
    ("no status", b"set_status", END, 7, "the argument status is missing"),
    ("name of a wrong type", b"peek", b"\x08\x00\x01\x00\x00\x00\x01" + END, 7, "the argument queue_name is missing"),
    ("items as a set", b"put", WORK + b"\x0e" + ITEMS[1:] + END, 7, "the argument items is missing"),
    ("ids as a list", b"abort", WORK + b"\x0f" + IDS[1:] + END, 7, "the argument ids is missing"),
    ("two names", b"peek", WORK + WORK + END, 7, "the argument queue_name is there twice"),
    ("two lists of items", b"put", WORK + ITEMS + ITEMS + END, 7, "the argument items is there twice"),
    (
        "items of a wrong type",
        b"put",
        WORK + b"\x0f\x00\x02\x08\x00\x00\x00\x01\x00\x00\x00\x00" + END,
        7,
        "the elements of a list or set are of the wrong type",
    ),
    (
        "ids of a wrong type",
        b"confirm",
        WORK + b"\x0e\x00\x02\x08\x00\x00\x00\x02" + bytes(8) + END,
        7,
        "the elements of a list or set are of the wrong type",
    ),
    (
        "more ids than the frame holds",
        b"confirm",
        WORK + b"\x0e\x00\x02\x0a\x7f\xff\xff\xff" + END,
        7,
        "the message ends before all its elements",
    ),
    (
        "a name longer than the frame",
        b"peek",
        b"\x0b\x00\x01\x7f\xff\xff\xffwork" + END,
        7,
        "the message ends too soon",
    ),
    ("a name of negative length", b"peek", b"\x0b\x00\x01\xff\xff\xff\xff" + END, 7, "a length is negative"),
    ("bytes behind the end", b"peek", WORK + END + b"x", 7, "there are bytes after the end of the message"),
    ("bytes behind no arguments", b"get_version", END + END, 7, "there are bytes after the end of the message"),
    ("no such status", b"set_status", b"\x08\x00\x01\x00\x00\x00\x04" + END, 6, "4 is no status that can be set"),
    ("not configured", b"set_status", b"\x08\x00\x01\x00\x00\x00\x00" + END, 6, "0 is no status that can be set"),
    ("negative status", b"set_status", b"\x08\x00\x01\xff\xff\xff\xff" + END, 6, "-1 is no status that can be set"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "type_", "message"), [refused[1:] for refused in REFUSED], ids=[what for what, *_ in REFUSED]
)
@FORMS
def test_refused_call_gets_a_reason_and_stream_continues(
    form: Form, name: bytes, arguments: bytes, type_: int, message: str
) -> None:
    refused, following = parse(form(name, arguments) + strict(b"peek", WORK + END))
    assert values_of(refused) == values_of(Malformed(message, closes=False))
    assert refusal(refused) == (type_, message)
    assert values_of(following) == values_of(commands.Inspect(b"work"))


@pytest.mark.parametrize("type_", [2, 3, 4, 0, 9], ids=["reply", "exception", "oneway", "0", "9"])
@FORMS
def test_message_that_is_no_call_is_refused(form: Form, type_: int) -> None:
    refused, following = parse(form(b"peek", b"what", type_=type_) + strict(b"peek", WORK + END))
    assert values_of(refused) == values_of(Malformed("the message is not a call", closes=False))
    assert refusal(refused) == (2, "the message is not a call")
    assert values_of(following) == values_of(commands.Inspect(b"work"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00",
        b"\x80\x01\x00\x01\x00\x00\x00\x04peek\x00\x00\x00",
        b"\x80\x02\x00\x01\x00\x00\x00\x04peek\x00\x00\x00\x07" + WORK + END,
        b"\x80\x01\x00\x01\x7f\xff\xff\xffpeek\x00\x00\x00\x07",
        b"\x80\x01\x00\x01\x00\x00\x00\x65" + b"p" * 101 + b"\x00\x00\x00\x07",
        b"\x82\x21\x00\x04peek\x00",
        b'[1,"peek",1,0,{}]',
    ],
    ids=["empty", "a byte", "cut short", "version 2", "endless name", "long name", "compact protocol", "JSON protocol"],
)
def test_frame_without_header_ends_the_connection(message: bytes) -> None:
    codec = codec_of()
    refused = one(framed(message) + strict(b"peek", WORK + END), codec)
    assert isinstance(refused, Malformed)
    assert refused.closes
    reply, _ = codec.error(refused, errors.ClientError(refused.reason))
    assert reply[4:16] == NO_NAME_AND_NUMBER
    assert exception_in(reply) == (7, refused.reason)
    assert parse(strict(b"peek", WORK + END), codec=codec) == []
    assert len(codec) == 0


# Limits.


def test_item_at_the_limit_is_taken_and_larger_one_refused() -> None:
    def request(size: int) -> bytes:
        items = b"\x0f\x00\x02\x0b\x00\x00\x00\x02\x00\x00\x00\x01a" + struct.pack(">i", size) + b"x" * size
        return strict(b"put", WORK + items + END)

    assert values_of(one(request(MAX_ITEM_BYTES))) == values_of(put(0, b"a", b"x" * MAX_ITEM_BYTES))
    refused = one(request(MAX_ITEM_BYTES + 1))
    assert values_of(refused) == values_of(Malformed("item too large; limit=200", closes=False))
    assert refusal(refused) == (6, "item too large; limit=200")


@pytest.mark.parametrize(
    ("name", "field", "element"),
    [
        (b"put", b"\x0f\x00\x02\x0b", b"\x00\x00\x00\x01x"),
        (b"confirm", b"\x0e\x00\x02\x0a", bytes(8)),
        (b"abort", b"\x0e\x00\x02\x0a", bytes(8)),
    ],
)
def test_list_at_the_limit_is_taken_and_longer_one_refused(name: bytes, field: bytes, element: bytes) -> None:
    def request(count: int) -> bytes:
        return strict(name, WORK + field + struct.pack(">i", count) + element * count + END)

    assert not isinstance(one(request(MAX_LIST_SIZE)), Malformed)
    refused = one(request(MAX_LIST_SIZE + 1))
    assert values_of(refused) == values_of(Malformed("too many items in one call; limit=8", closes=False))
    assert refusal(refused) == (6, "too many items in one call; limit=8")


def test_too_long_list_is_refused_before_reading_its_elements() -> None:
    elements = b"\xff\xff\xff\xff" * 9
    assert refusal(one(strict(b"put", WORK + b"\x0f\x00\x02\x0b\x00\x00\x00\x09" + elements + END)))[0] == 6


def test_frame_at_the_limit_is_taken() -> None:
    frame = strict(b"peek", WORK + END)
    assert values_of(one(frame, codec_of(max_frame_bytes=len(frame) - 4))) == values_of(commands.Inspect(b"work"))
    refused = one(frame, codec_of(max_frame_bytes=len(frame) - 5))
    assert isinstance(refused, Malformed)
    assert refused.closes


def too_large(size: int, header: bytes) -> bytes:
    return struct.pack(">i", size) + header


STRICT_HEADER = strict(b"put", b"")[4:]
LOOSE_HEADER = loose(b"put", b"")[4:]


NO_NAME_AND_NUMBER = b"\x80\x01\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00"
"""Header of a reply to a request whose header cannot be read."""


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, (1 << 31) - 1, -1, -(1 << 31)])
@pytest.mark.parametrize(
    ("header", "answered"),
    [
        (STRICT_HEADER, b"\x80\x01\x00\x03\x00\x00\x00\x03put\x00\x00\x00\x07"),
        (LOOSE_HEADER, b"\x00\x00\x00\x03put\x03\x00\x00\x00\x07"),
        (b"\xff\xff\xff\xff", NO_NAME_AND_NUMBER),
        (b" / H", NO_NAME_AND_NUMBER),
        (b"\x80\x01\x00\x01\x00\x00\x00\x65", NO_NAME_AND_NUMBER),
    ],
    ids=["strict", "loose", "negative length", "HTTP", "long name"],
)
def test_too_large_frame_is_answered_once_its_header_is_read(size: int, header: bytes, answered: bytes) -> None:
    codec = codec_of()
    pieces = byte_by_byte(too_large(size, header))
    assert parse(*pieces[:-1], codec=codec) == []
    refused = one(pieces[-1], codec)
    assert values_of(refused) == values_of(Malformed("frame too large; limit=1000", closes=True))
    reply, _ = codec.error(refused, errors.ClientError(refused.reason))
    assert reply[4 : 4 + len(answered)] == answered
    assert exception_in(reply) == (6, "frame too large; limit=1000")


def test_too_large_frame_is_not_held() -> None:
    codec = codec_of()
    codec.buffer.receive(too_large(MAX_FRAME_BYTES + 1, STRICT_HEADER[:-1]))
    assert codec.next_command() is None
    assert len(codec) == 1  # nothing is held; 1 because a frame has begun
    codec.buffer.receive(STRICT_HEADER[-1:] + bytes(MAX_FRAME_BYTES))
    assert isinstance(codec.next_command(), Malformed)
    for _ in range(3):
        codec.buffer.receive(strict(b"peek", WORK + END) * 100)
        assert codec.next_command() is None
        assert len(codec) == 0


def test_longest_header_of_too_large_frame_is_read() -> None:
    name = b"n" * 100
    refused = one(too_large(MAX_FRAME_BYTES + 1, strict(name, b"")[4:]))
    assert refused.call.name == name
    assert refused.call.seqid == 7


def test_held_bytes_are_those_not_yet_parsed() -> None:
    codec = codec_of()
    frame = strict(b"peek", WORK + END)
    codec.buffer.receive(frame + frame + frame[:10])
    assert len(codec) == 2 * len(frame) + 10
    assert len(drain(codec)) == 2
    assert len(codec) == 6  # the length has been read
    codec.buffer.receive(frame[10:])
    assert len(drain(codec)) == 1
    assert len(codec) == 0


def test_incomplete_frame_is_not_parsed() -> None:
    size = 2 * MANY_BYTES
    item = b"\x0f\x00\x02\x0b\x00\x00\x00\x01" + struct.pack(">i", size) + b"x" * size
    stream = strict(b"put", WORK + item + END)
    make = partial(codec_of, max_frame_bytes=2 * size, max_item_bytes=size)
    assert type(one(stream, make())) is commands.Put
    assert small_pieces_cost_the_same_behind_much(make, stream[:-size], b"x")


# Replies.

STRICT_REPLY = b"\x80\x01\x00\x02\x00\x00\x00%b%b\xff\xff\xff\xfe"
LOOSE_REPLY = b"\x00\x00\x00%b%b\x02\xff\xff\xff\xfe"

INFO = QueueInfo(b"head", 1, 4, 1 << 33, 250, 2, 3)

FIGURES = (
    b"\x0a\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01"
    b"\x0a\x00\x03\x00\x00\x00\x00\x00\x00\x00\x04"
    b"\x0a\x00\x04\x00\x00\x00\x02\x00\x00\x00\x00"
    b"\x0a\x00\x05\x00\x00\x00\x00\x00\x00\x00\xfa"
    b"\x08\x00\x06\x00\x00\x00\x02"
    b"\x08\x00\x07\x00\x00\x00\x03"
    b"\x00"
)

NO_FIGURES = b"".join(b"\x0a\x00%c" % id_ + bytes(8) for id_ in (2, 3, 4, 5)) + (
    b"\x08\x00\x06\x00\x00\x00\x00\x08\x00\x07\x00\x00\x00\x00\x00"
)

Answer = Callable[[ThriftCodec, Any], bytes]

REPLIES: list[tuple[bytes, bytes, Answer, bytes]] = [
    # method, arguments, result of the server, fields of the reply
    (b"put", WORK + ITEMS + END, lambda codec, put: codec.stored(put, 2), b"\x08\x00\x00\x00\x00\x00\x02"),
    (
        b"get",
        WORK + MAX_ITEMS_10 + END,
        lambda codec, get: codec.items(get, [(b"one", 0), (b"", 1 << 40)]),
        b"\x0f\x00\x00\x0c\x00\x00\x00\x02"
        b"\x0b\x00\x01\x00\x00\x00\x03one\x0a\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00"
        b"\x0b\x00\x01\x00\x00\x00\x00\x0a\x00\x02\x00\x00\x01\x00\x00\x00\x00\x00\x00",
    ),
    (
        b"get",
        WORK + MAX_ITEMS_10 + END,
        lambda codec, get: codec.items(get, []),
        b"\x0f\x00\x00\x0c\x00\x00\x00\x00",
    ),
    (b"confirm", WORK + IDS + END, lambda codec, confirm: codec.number(confirm, 1), b"\x08\x00\x00\x00\x00\x00\x01"),
    (b"abort", WORK + IDS + END, lambda codec, abort: codec.number(abort, 0), b"\x08\x00\x00\x00\x00\x00\x00"),
    (
        b"peek",
        WORK + END,
        lambda codec, peek: codec.queue_info(peek, INFO),
        b"\x0c\x00\x00" + b"\x0b\x00\x01\x00\x00\x00\x04head" + FIGURES,
    ),
    (b"peek", WORK + END, lambda codec, peek: codec.queue_info(peek, QueueInfo()), b"\x0c\x00\x00" + NO_FIGURES),
    (
        b"peek",
        WORK + END,
        lambda codec, peek: codec.queue_info(peek, QueueInfo(head=b"")),
        b"\x0c\x00\x00" + b"\x0b\x00\x01\x00\x00\x00\x00" + NO_FIGURES,
    ),
    (
        b"list_queues",
        END,
        lambda codec, ask: codec.queue_names(ask, [b"a", b"\xff"]),
        b"\x0f\x00\x00\x0b\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x01\xff",
    ),
    (b"flush_queue", WORK + END, ThriftCodec.done, b""),
    (b"flush_all_queues", END, ThriftCodec.done, b""),
    (b"delete_queue", WORK + END, ThriftCodec.done, b""),
    (b"set_status", b"\x08\x00\x01\x00\x00\x00\x01" + END, ThriftCodec.done, b""),
    *(
        (
            b"current_status",
            END,
            lambda codec, status, name=name: codec.status(status, name),
            b"\x08\x00\x00\x00\x00\x00" + bytes([number]),
        )
        for name, number in [("Up", 3), ("ReadOnly", 2), ("Quiescent", 1), ("WriteAvoid", 0), ("Down", 0)]
    ),
    (b"get_version", END, lambda codec, ask: codec.version(ask, "1.2.3"), b"\x0b\x00\x00\x00\x00\x00\x051.2.3"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "answer", "result"),
    REPLIES,
    ids=[f"{name.decode()}-{n}" for n, (name, *_) in enumerate(REPLIES)],
)
@pytest.mark.parametrize(("form", "header"), [(strict, STRICT_REPLY), (loose, LOOSE_REPLY)], ids=["strict", "loose"])
def test_reply_has_the_form_of_its_request(
    form: Form, header: bytes, name: bytes, arguments: bytes, answer: Answer, result: bytes
) -> None:
    codec = codec_of()
    command = one(form(name, arguments, seqid=-2), codec)
    assert answer(codec, command) == framed(header % (bytes([len(name)]), name) + result + END)


def test_reply_may_have_as_many_items_as_a_put() -> None:
    codec: Codec = codec_of(max_list_size=5)
    assert codec.max_reply_items == 5


def test_items_of_a_reply_fit_the_frame_limit() -> None:
    codec: Codec = codec_of(max_frame_bytes=5000)
    assert codec.max_reply_bytes > 4000
    codec.buffer.receive(strict(b"get", WORK + b"\x08\x00\x02\xff\xff\xff\xff" + END))
    command = codec.next_command()
    assert isinstance(command, commands.GetMany)
    for size in (0, 1, 100, codec.max_reply_bytes - ITEM_OVERHEAD_BYTES):
        count = codec.max_reply_bytes // (size + ITEM_OVERHEAD_BYTES)
        reply = codec.items(command, [(b"x" * size, (1 << 63) - 1)] * count)
        assert len(reply) - 4 <= 5000


def test_reply_fits_default_limits_of_client_libraries() -> None:
    codec: Codec = codec_of(max_frame_bytes=32 * 1024 * 1024)
    codec.buffer.receive(strict(b"get", WORK + b"\x08\x00\x02\xff\xff\xff\xff" + END))
    command = codec.next_command()
    assert isinstance(command, commands.GetMany)
    reply = codec.items(command, [(b"x" * (codec.max_reply_bytes - ITEM_OVERHEAD_BYTES), 1)])
    assert 16_000_000 < len(reply) - 4 <= 16_384_000


@pytest.mark.parametrize(
    ("error", "reason", "closes"),
    [
        (errors.Unavailable("Server not available for operation put"), "Server not available for operation put", False),
        (errors.NotAuthorized("you are not listed"), "you are not listed", False),
        (errors.BadQueueName("that is no name"), "that is no name", False),
        (errors.TooManyOpenReads("too many open"), "too many open", False),
        (errors.StorageRefused("disk full"), "disk full", False),
        (errors.QueueFailed("the disk failed"), "the disk failed", False),
        (errors.ClientError("two\nlines, schön"), "two\nlines, schön", False),
        (RuntimeError("secret"), "internal error", True),
    ],
)
@pytest.mark.parametrize(
    ("form", "header"),
    [
        (strict, b"\x80\x01\x00\x03\x00\x00\x00\x04peek\x00\x00\x00\x07"),
        (loose, b"\x00\x00\x00\x04peek\x03\x00\x00\x00\x07"),
    ],
    ids=["strict", "loose"],
)
def test_errors_are_encoded(form: Form, header: bytes, error: Exception, reason: str, closes: bool) -> None:
    codec = codec_of()
    reply, ends = codec.error(one(form(b"peek", WORK + END), codec), error)
    words = reason.encode()
    exception = b"\x0b\x00\x01" + struct.pack(">i", len(words)) + words + b"\x08\x00\x02\x00\x00\x00\x06\x00"
    assert reply == framed(header + exception)
    assert ends is closes


def test_error_that_answers_no_request_has_no_name_and_number() -> None:
    reply, closes = codec_of().error(Command(), errors.Unavailable("too many connections"))
    assert reply[4:16] == NO_NAME_AND_NUMBER
    assert exception_in(reply) == (6, "too many connections")
    assert not closes


@pytest.mark.parametrize(
    "stream",
    [
        b"\x3f\xff\xff\xff" + WORK,
        strict(b"put", WORK + b"\x0f\x00\x02\x0b\x3f\xff\xff\xff"),
        strict(b"confirm", WORK + b"\x0e\x00\x02\x0a\x3f\xff\xff\xff"),
        strict(b"put", b"\x0b\x00\x01\x3f\xff\xff\xff"),
    ],
    ids=["frame", "items", "numbers", "bytes"],
)
def test_claimed_sizes_take_no_memory(stream: bytes) -> None:
    def parsing() -> Work:
        codec = codec_of(max_frame_bytes=1 << 30, max_item_bytes=1 << 30, max_list_size=1 << 30)
        return lambda: parse(stream, codec=codec)

    assert peak_bytes(parsing) < 20_000 + 100 * len(stream)


# The IDL.


def test_packaged_idl_declares_the_served_methods() -> None:
    idl = (files("kestrel.protocols") / "kestrel.thrift").read_text("utf-8")
    assert all(f" {name.decode()}(" in idl for name in thrift._METHODS)
    assert idl.index("namespace java net.lag.kestrel.thrift") < idl.index("struct Item")
