"""The text codec: bytes to commands, and results to bytes, without connections or queues."""

from __future__ import annotations

import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel import commands, errors
from kestrel.protocols.text import _SYNTAX, PARTIAL_PUT_ITEM_OVERHEAD_BYTES, TextCodec
from tests.protocols.command_values import (
    MANY_BYTES,
    CommandValues,
    byte_by_byte,
    drain,
    parse_with,
    small_pieces_cost_the_same_behind_much,
    values_of,
)

OPEN, CLOSES = False, True

PUT = commands.Put(b"work", (b"a",), 0, True)


def parse(*pieces: bytes, **limits: int) -> list[CommandValues]:
    return [values_of(command) for command in parse_with(TextCodec(**limits), pieces)]


def put(queue: bytes, *items: bytes, expiry_ms: int = 0) -> CommandValues:
    return values_of(commands.Put(queue, items, expiry_ms, True))


def get(queue: bytes, wait_ms: int = 0) -> CommandValues:
    return values_of(commands.Get(queue, wait_ms, opens=True, closes_all=True))


def peek(queue: bytes, wait_ms: int = 0) -> CommandValues:
    return values_of(commands.Get(queue, wait_ms, peeks=True, closes_all=True))


def monitor(queue: bytes, wait_ms: int) -> CommandValues:
    return values_of(commands.Monitor(queue, wait_ms, None, closes_all=True))


def malformed(reason: str, *, closes: bool = OPEN) -> CommandValues:
    return values_of(commands.Malformed(reason, closes=closes))


VERSION = values_of(commands.Version())
NAME_REQUIRED = malformed("Queue name required.")
BAD_TIMEOUT = malformed("Error parsing timeout.")
BAD_EXPIRY = malformed("Error parsing expiration time.")
BAD_COUNT = malformed("Error parsing count.")
ITEM_TOO_LARGE = malformed("Item too large.", closes=CLOSES)
LINE_TOO_LONG = malformed("Line too long.", closes=CLOSES)

REQUESTS: list[tuple[bytes, CommandValues]] = [
    # put
    (b"put work:\nhello\n\n", put(b"work", b"hello")),
    (b"put work:\r\nhello\r\n\r\n", put(b"work", b"hello")),
    (b"put work:\nhello\r\n\n", put(b"work", b"hello")),
    (b"PuT WoRK:\nHeLLo\n\n", put(b"WoRK", b"HeLLo")),
    (b"put work :\nhello\n\n", put(b"work", b"hello")),
    (b"put work   :\nhello\n\n", put(b"work", b"hello")),
    (b"put work:\na\nb\nc\n\n", put(b"work", b"a", b"b", b"c")),
    (b"put work:\n\n", put(b"work")),
    (b"put work:\n\r\n", put(b"work")),
    (b"put work\n", put(b"work")),
    (b"put work 100\n", put(b"work", expiry_ms=100)),
    (b"put work: \n", put(b"work:")),
    (b"put work::\na\n\n", put(b"work:", b"a")),
    (b"put work 100:\na\n\n", put(b"work", b"a", expiry_ms=100)),
    (b"put work 100 :\na\n\n", put(b"work", b"a", expiry_ms=100)),
    (b"put work 100 more words:\na\n\n", put(b"work", b"a", expiry_ms=100)),
    (b"put work 0:\na\n\n", put(b"work", b"a")),
    (b"put work -1:\na\n\n", put(b"work", b"a", expiry_ms=-1)),
    (b"put work 2147483647:\na\n\n", put(b"work", b"a", expiry_ms=2**31 - 1)),
    (b"put work:\nx:\n:\nget work\n \n\n", put(b"work", b"x:", b":", b"get work", b" ")),
    (b"put work:\n\x00\xff\x80\t\n\n", put(b"work", b"\x00\xff\x80\t")),
    (b"put work:\n\r\r\na\rb\r\r\n\n", put(b"work", b"\r", b"a\rb\r")),
    (b"put w\xc3\xb6rk+x:\nx\n\n", put(b"w\xc3\xb6rk+x", b"x")),
    # get, peek, monitor, confirm
    (b"get work\n", get(b"work")),
    (b"get work\r\n", get(b"work")),
    (b"GET work \n", get(b"work")),
    (b"get work 250\n", get(b"work", 250)),
    (b"get work 250 more\n", get(b"work", 250)),
    (b"get work -5\n", get(b"work", -5)),
    (b"get work/open\n", get(b"work/open")),
    (b"peek work\n", peek(b"work")),
    (b"peek work 250\n", peek(b"work", 250)),
    (b"monitor work 250\n", monitor(b"work", 250)),
    (b"monitor work 250 7\n", monitor(b"work", 250)),
    (b"monitor work 0\n", monitor(b"work", 0)),
    (b"monitor work -1\n", monitor(b"work", -1)),
    (b"confirm work 3\n", values_of(commands.Confirm(b"work", 3))),
    (b"confirm work 0\n", values_of(commands.Confirm(b"work", 0))),
    (b"confirm work -3\n", values_of(commands.Confirm(b"work", -3))),
    # whole queues, and the server
    (b"delete work\n", values_of(commands.Delete(b"work"))),
    (b"flush work\n", values_of(commands.Flush(b"work"))),
    (b"flush_expired work\n", values_of(commands.FlushExpired(b"work"))),
    (b"flush_all\n", values_of(commands.FlushAll())),
    (b"flush_all_expired\n", values_of(commands.FlushAllExpired())),
    (b"help\n", values_of(commands.Help())),
    (b"version\n", VERSION),
    (b"VERSION now \r\n", VERSION),
    (b"stats\n", values_of(commands.Stats())),
    (b"dump_stats\n", values_of(commands.DumpStats([]))),
    (b"dump_stats work other\n", values_of(commands.DumpStats([b"work", b"other"]))),
    (b"dump_config\n", values_of(commands.DumpConfig([]))),
    (b"dump_config work\n", values_of(commands.DumpConfig([b"work"]))),
    (b"reload\n", values_of(commands.Reload())),
    (b"status\n", values_of(commands.Status(None))),
    (b"status Up\n", values_of(commands.Status(b"Up"))),
    (b"quit\n", values_of(commands.Quit())),
    (b"shutdown\n", values_of(commands.Shutdown())),
    # data behind a request that is no put
    (b"get work:\na\nb\n\n", get(b"work")),
    (b"get work 250 :\r\nput other:\r\n\r\n", get(b"work", 250)),
    (b"get work:\n\n", get(b"work")),
    (b"version:\nx\n\r\n", VERSION),
    (b"quit:\nx\r\n\n", values_of(commands.Quit())),
    # requests with errors; the next one is readable
    (b"put\n", NAME_REQUIRED),
    (b"put:\na\n\n", NAME_REQUIRED),
    (b"put :\na\nb\n\n", NAME_REQUIRED),
    (b"put work x:\na\n\n", BAD_EXPIRY),
    (b"put work 1.5:\na\n\n", BAD_EXPIRY),
    (b"put work 2147483648:\na\n\n", BAD_EXPIRY),
    (b"put work  100:\na\n\n", BAD_EXPIRY),
    (b"put work x\n", BAD_EXPIRY),
    (b"get\n", NAME_REQUIRED),
    (b"get work soon\n", BAD_TIMEOUT),
    (b"get work 2147483648\n", BAD_TIMEOUT),
    (b"get work soon:\na\n\n", BAD_TIMEOUT),
    (b"get work " + b"9" * 6000 + b"\n", BAD_TIMEOUT),
    (b"peek\n", NAME_REQUIRED),
    (b"peek work soon\n", BAD_TIMEOUT),
    (b"monitor\n", malformed("Queue name & timeout required.")),
    (b"monitor work\n", malformed("Queue name & timeout required.")),
    (b"monitor work soon\n", BAD_TIMEOUT),
    (b"confirm\n", malformed("Queue name & count required.")),
    (b"confirm work\n", malformed("Queue name & count required.")),
    (b"confirm work many\n", BAD_COUNT),
    (b"confirm work 2147483648\n", BAD_COUNT),
    (b"delete\n", NAME_REQUIRED),
    (b"flush\n", NAME_REQUIRED),
    (b"flush_expired\n", NAME_REQUIRED),
    # no requests; none of them closes the connection
    (b"BoGus a\n", malformed("Unknown command: bogus")),
    (b"bogus:\na\n\n", malformed("Unknown command: bogus")),
    (b"abort work\n", malformed("Unknown command: abort")),
    (b"get\twork\n", malformed("Unknown command: get\twork")),
    (b"\xc3\x84H\x00\r\xff\n", malformed("Unknown command: \xc3\x84h\x00\r\xff")),
    (b" version\n", malformed("Unknown command: ")),
    (b"\n", malformed("Unknown command: ")),
    (b"\r\n", malformed("Unknown command: ")),
    (b"   \n", malformed("Unknown command: ")),
    (b":\na\n\n", malformed("Unknown command: ")),
]

each_request = pytest.mark.parametrize(
    ("request_bytes", "expected"), REQUESTS, ids=[repr(request[:40])[1:] for request, _ in REQUESTS]
)


@each_request
def test_request_in_one_piece_is_read(request_bytes: bytes, expected: CommandValues) -> None:
    assert parse(request_bytes) == [expected]


@each_request
def test_request_byte_by_byte_is_read(request_bytes: bytes, expected: CommandValues) -> None:
    codec = TextCodec()
    *pieces, last = byte_by_byte(request_bytes)
    assert parse_with(codec, pieces) == []
    assert [values_of(command) for command in parse_with(codec, [last])] == [expected]


@each_request
def test_request_with_following_bytes_is_read(request_bytes: bytes, expected: CommandValues) -> None:
    assert parse(request_bytes + b"version\nver") == [expected, VERSION]


# Limits.


def test_line_of_eight_kib_is_read() -> None:
    line = b"get work" + b" " * (8 * 1024 - 8)
    assert parse(line + b"\n") == [get(b"work")]
    assert parse(line[:-1] + b"\r\n") == [get(b"work")]


def test_line_over_eight_kib_is_too_long() -> None:
    line = b"get work" + b" " * (8 * 1024 - 7)
    assert parse(line + b"\nversion\n") == [LINE_TOO_LONG]
    assert parse(line[:-1] + b":\na\n\nversion\n") == [LINE_TOO_LONG]


def test_unfinished_line_over_the_limit_is_too_long() -> None:
    codec = TextCodec(max_line_bytes=100)
    assert parse_with(codec, [b"x" * 99, b"x"]) == []
    assert [values_of(command) for command in parse_with(codec, [b"x"])] == [LINE_TOO_LONG]
    assert len(codec) == 0


def test_line_limit_does_not_apply_to_items() -> None:
    assert parse(b"put work:\n", b"x" * 20_000, b"\n\n") == [put(b"work", b"x" * 20_000)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_item_at_the_limit_is_taken_and_larger_one_refused(end: bytes) -> None:
    for pieces in (lambda stream: [stream], byte_by_byte):
        good = b"put work:" + end + b"x" * 100 + end + end
        assert parse(*pieces(good), max_item_bytes=100) == [put(b"work", b"x" * 100)]
        bad = b"put work:" + end + b"x" * 101 + end + end + b"version\n"
        assert parse(*pieces(bad), max_item_bytes=100) == [ITEM_TOO_LARGE]


def test_unfinished_item_over_the_limit_is_too_large() -> None:
    codec = TextCodec(max_item_bytes=100)
    assert parse_with(codec, [b"put work:\na\n" + b"x" * 100, b"\r"]) == []
    assert [values_of(command) for command in parse_with(codec, [b"x"])] == [ITEM_TOO_LARGE]
    assert len(codec) == 0


def test_put_of_too_many_items_stores_none_and_stream_continues() -> None:
    refused = malformed("Too many items in one put; limit=1024")
    stream = b"put work:\n" + b"x\n" * 1025
    assert parse(stream) == [], "it is answered at its end"
    for more in (b"", b"x\n" * 5000, b"y\r\n\r\r\n", b"x" * 20_000 + b"\n"):
        assert parse(stream, more + b"\r\nversion\n") == [refused, VERSION]
        assert parse(*byte_by_byte(stream + more + b"\nversion\n")) == [refused, VERSION]


def test_item_count_limit_is_a_setting() -> None:
    refused = malformed("Too many items in one put; limit=2")
    assert parse(b"put q:\na\nb\n\n", max_put_items=2) == [put(b"q", b"a", b"b")]
    assert parse(b"put q:\na\nb\nc\n\nput q:\nd\n\n", max_put_items=2) == [refused, put(b"q", b"d")]


def test_items_of_a_put_together_have_a_size_limit() -> None:
    too_large = malformed("Put too large; limit=250 bytes", closes=CLOSES)
    limits = {"max_item_bytes": 100, "max_request_bytes": 250}
    items = [b"x" * 100, b"y" * 100, b"z" * 50]
    stream = b"put work:\n" + b"\n".join(items)
    for pieces in (lambda stream: [stream], byte_by_byte):
        assert parse(*pieces(stream + b"\n\n"), **limits) == [put(b"work", *items)]
        assert parse(*pieces(stream + b"z\n\nversion\n"), **limits) == [too_large]
        assert parse(*pieces(stream + b"\n1\n\nversion\n"), **limits) == [too_large]
        assert parse(*pieces(stream + b"zz"), **limits) == [too_large], "before the line ends"


def test_size_limit_applies_to_each_put_separately() -> None:
    one = b"put work:\n" + b"x" * 60 + b"\n" + b"x" * 40 + b"\n\n"
    assert parse(one * 3, max_request_bytes=100) == [put(b"work", b"x" * 60, b"x" * 40)] * 3


def test_error_names_the_narrower_limit() -> None:
    limits = {"max_item_bytes": 100, "max_request_bytes": 150}
    assert parse(b"put q:\n" + b"x" * 1000, **limits) == [ITEM_TOO_LARGE]
    too_large = malformed("Put too large; limit=150 bytes", closes=CLOSES)
    assert parse(b"put q:\n" + b"x" * 60 + b"\n" + b"x" * 1000, **limits) == [too_large]


def test_unfinished_put_counts_all_its_items_as_held() -> None:
    codec = TextCodec()
    assert parse_with(codec, [b"put work:\nhello\nwor", b"ld\r\nx"]) == []
    assert len(codec) == len(b"hello" + b"world" + b"x") + 2 * PARTIAL_PUT_ITEM_OVERHEAD_BYTES
    assert len(parse_with(codec, [b"\n\nget"])) == 1
    assert len(codec) == len(b"get")


def test_held_bytes_are_bounded_by_put_and_one_read() -> None:
    codec = TextCodec(max_request_bytes=9 * 111)
    most = 0
    while True:
        codec.buffer.receive(b"put work:\n" if most == 0 else b"x" * 9 + b"\n")
        most = max(most, len(codec))
        if codec.next_command() is not None:
            break
    assert most == 111 * (9 + PARTIAL_PUT_ITEM_OVERHEAD_BYTES) + 10
    assert len(codec) == 0


@pytest.mark.parametrize("beginning", [b"get work:\n", b"put work x:\n", b"put work:\na\nb\nc\n"])
def test_data_that_no_put_will_store_is_not_held(beginning: bytes) -> None:
    codec = TextCodec(max_put_items=2, max_item_bytes=100)
    assert parse_with(codec, [beginning]) == []
    for piece in [b"x\n" * 100, b"x" * 1000, b"x\r\nx\r", b"\r"] * 3:
        assert parse_with(codec, [piece]) == []
        assert 1 <= len(codec) <= 2
    assert len(parse_with(codec, [b"\n\nversion\n"])) == 2


def test_input_after_a_fatal_error_is_dropped() -> None:
    codec = TextCodec(max_item_bytes=4)
    assert [values_of(command) for command in parse_with(codec, [b"put q:\na\nhello\n\nversion\n"])] == [ITEM_TOO_LARGE]
    assert len(codec) == 0
    codec.buffer.receive(b"version\n" * 1000)
    assert len(codec) == 0
    assert drain(codec) == []


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"get ", b"x"),
        (b"put q:\n", b"x"),
        (b"put q:\n", b"xyz\r\n"),
        (b"get q:\n", b"x"),
        (b"get q:\n", b"xyz\r\n"),
    ],
    ids=["line", "item", "items", "dropped", "dropped lines"],
)
def test_small_pieces_cost_linear_work(begin: bytes, piece: bytes) -> None:
    most = 2 * MANY_BYTES
    make = partial(
        TextCodec, max_line_bytes=most, max_item_bytes=most, max_put_items=most, max_request_bytes=4 * MANY_BYTES
    )
    assert small_pieces_cost_the_same_behind_much(make, begin, piece)


LINES = st.binary(min_size=1, max_size=20).map(lambda data: data.replace(b"\n", b"\r"))


@given(items=st.lists(LINES, max_size=8))
def test_items_with_crlf_line_ends_keep_their_bytes(items: list[bytes]) -> None:
    stream = b"put work:\r\n" + b"".join(item + b"\r\n" for item in items) + b"\r\n"
    assert parse(stream) == [put(b"work", *items)]


# Results to bytes.


def test_help_has_a_line_for_each_command_and_a_star() -> None:
    *lines, end, rest = TextCodec().help().split(b"\n")
    assert (end, rest) == (b"*", b"")
    assert sorted(re.match(rb":(\w+)", line)[1] for line in lines) == sorted(_SYNTAX)  # type: ignore[index]
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (errors.TooManyOpenReads("too many open reads; limit=100"), b"-Too many open transactions; limit=100\n"),
        (errors.TooManyOpenReads("why"), b"-Too many open transactions\n"),
        (errors.TooFewOpenReads("why"), b"-Not that many transactions open.\n"),
        (errors.UnknownStatus("why"), b"-Unknown status.\n"),
        (errors.StatusForbidden("why"), b"-Status forbidden.\n"),
        (errors.BadQueueName("why"), b"-why\n"),
        (errors.Unavailable("why"), b"-Server not available for operation setItem\n"),
        (errors.NotAuthorized("why"), b"-The operation setItem is disallowed: why\n"),
        (errors.StorageRefused("disk full"), b"-disk full\n"),
        (errors.ItemTooLarge("why"), b"-why\n"),
        (errors.QueueFailed("one\r\ntwo\nthree"), b"-one two three\n"),
        (errors.KestrelError("\xdcbel \N{SNOWMAN}"), b"-\xdcbel ?\n"),
    ],
)
def test_error_is_one_line_and_connection_stays(error: Exception, reply: bytes) -> None:
    assert TextCodec().error(PUT, error) == (reply, OPEN)


def test_internal_error_reveals_nothing_and_closes() -> None:
    assert TextCodec().error(PUT, ValueError("a\nb")) == (b"-internal error\n", CLOSES)


@pytest.mark.parametrize(
    ("command", "operation"),
    [
        (PUT, b"setItem"),
        (commands.Get(b"work", opens=True), b"getItem"),
        (commands.Get(b"work", peeks=True), b"getItem"),
        (commands.Monitor(b"work", 5, None), b"monitorUntil"),
        (commands.Flush(b"work"), b"flush"),
        (commands.FlushAll(), b"flushAll"),
        (commands.Delete(b"work"), b"delete"),
        (commands.FlushExpired(b"work"), b"flushExpired"),
    ],
)
def test_unavailable_server_names_the_operation(command: commands.Command, operation: bytes) -> None:
    codec = TextCodec()
    unavailable = codec.error(command, errors.Unavailable("the server is ReadOnly"))
    assert unavailable == (b"-Server not available for operation " + operation + b"\n", OPEN)
    disallowed = codec.error(command, errors.NotAuthorized("not you"))
    assert disallowed == (b"-The operation " + operation + b" is disallowed: not you\n", OPEN)


def test_reason_replaces_missing_operation_name() -> None:
    assert TextCodec().error(commands.Reload(), errors.Unavailable("not now")) == (b"-not now\n", OPEN)
