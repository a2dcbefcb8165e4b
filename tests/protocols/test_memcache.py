"""The memcache codec: bytes to commands, and results to bytes, without connections or queues."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel import commands, errors
from kestrel.protocols.memcache import MemcacheCodec
from tests.protocols.command_values import (
    MANY_BYTES,
    CommandValues,
    byte_by_byte,
    cut_at,
    drain,
    parse_with,
    small_pieces_cost_the_same_behind_much,
)
from tests.protocols.command_values import values_of as all_values_of

OPEN, CLOSES = False, True

PUT = commands.Put(b"work", (b"a",), 0, True)


def values_of(command: commands.Command) -> CommandValues:
    if isinstance(command, commands.Put):
        # The start time of an expiry that never comes does not matter.
        expiry = (command.expiry_ms, command.expiry_is_relative) if command.expiry_ms else 0
        return (commands.Put, command.queue, tuple(command.items), expiry, command.wants_reply)
    if isinstance(command, commands.Malformed):
        return (commands.Malformed, command.closes, command.wants_reply)
    return all_values_of(command)


def parse(*pieces: bytes, **limits: int) -> list[commands.Command]:
    return parse_with(MemcacheCodec(**limits), pieces)


def put(
    queue: bytes, data: bytes, expiry_ms: int = 0, *, relative: bool = True, wants_reply: bool = True
) -> CommandValues:
    return values_of(commands.Put(queue, (data,), expiry_ms, relative, wants_reply=wants_reply))


def get(queue: bytes, wait_ms: int = 0, key: bytes | None = None, **options: bool) -> CommandValues:
    return values_of(commands.Get(queue, wait_ms, key=key or queue, **options))


def malformed(*, closes: bool, wants_reply: bool = True) -> CommandValues:
    return (commands.Malformed, closes, wants_reply)


def ends_the_stream(command: CommandValues) -> bool:
    return command[:2] == (commands.Malformed, CLOSES)


REQUESTS: list[tuple[bytes, CommandValues]] = [
    # set
    (b"set work 0 0 5\r\nhello\r\n", put(b"work", b"hello")),
    (b"set work 0 0 5\nhello\r\n", put(b"work", b"hello")),
    (b"SET work 0 0 5\r\nhello\r\n", put(b"work", b"hello")),
    (b"sEt WoRK 0 0 5\r\nHeLLo\r\n", put(b"WoRK", b"HeLLo")),
    (b"set work 0 0 5  \r\nhello\r\n", put(b"work", b"hello")),
    (b"set work 0 0 5 noreply\r\nhello\r\n", put(b"work", b"hello", wants_reply=False)),
    (b"set work 0 0 5 some noreply \r\nhello\r\n", put(b"work", b"hello", wants_reply=False)),
    (b"set work 0 0 5 NOREPLY\r\nhello\r\n", put(b"work", b"hello")),
    (b"set work 0 0 5 noreply please\r\nhello\r\n", put(b"work", b"hello")),
    (b"set noreply 0 0 5\r\nhello\r\n", put(b"noreply", b"hello")),
    (b"set work 0 0 0\r\n\r\n", put(b"work", b"")),
    (b"set work 0 0 9\r\na\r\nb\nc\r\n\n\r\n", put(b"work", b"a\r\nb\nc\r\n\n")),
    (b"set work 0 0 10\r\nget other\n\r\n", put(b"work", b"get other\n")),
    (b"set work 0 0 4\r\n\x00\xff\x80\r\r\n", put(b"work", b"\x00\xff\x80\r")),
    (b"set w\xc3\xb6rk+x 0 0 1\r\nx\r\n", put(b"w\xc3\xb6rk+x", b"x")),
    (b"set work 2147483647 0 1\r\nx\r\n", put(b"work", b"x")),
    (b"set work -2147483648 0 1\r\nx\r\n", put(b"work", b"x")),
    (b"set work 0 1 1\r\nx\r\n", put(b"work", b"x", 1000)),
    (b"set work 0 -1 1\r\nx\r\n", put(b"work", b"x", -1000)),
    (b"set work 0 999999 1\r\nx\r\n", put(b"work", b"x", 999_999_000)),
    (b"set work 0 1000000 1\r\nx\r\n", put(b"work", b"x", 1_000_000_000, relative=False)),
    (b"set work 0 1700000000 1\r\nx\r\n", put(b"work", b"x", 1_700_000_000_000, relative=False)),
    # get
    (b"get work\r\n", get(b"work")),
    (b"get work\n", get(b"work")),
    (b"GETS work\r\n", get(b"work")),
    (b"get work \r\n", get(b"work")),
    (b"get work other third\r\n", get(b"work")),
    (b"get work/t=250\r\n", get(b"work", 250, b"work/t=250")),
    (b"get work/t=0\r\n", get(b"work", 0, b"work/t=0")),
    (b"get work/t=-5\r\n", get(b"work", -5, b"work/t=-5")),
    (b"get work/open\r\n", get(b"work", key=b"work/open", opens=True)),
    (b"get work/close\r\n", get(b"work", key=b"work/close", closes=True)),
    (b"get work/abort\r\n", get(b"work", key=b"work/abort", aborts=True)),
    (b"get work/peek\r\n", get(b"work", key=b"work/peek", peeks=True)),
    (b"gets work/peek\r\n", get(b"work", key=b"work/peek", peeks=True)),
    (b"get work/peek/t=9\r\n", get(b"work", 9, b"work/peek/t=9", peeks=True)),
    (b"get work/t=9/peek\r\n", get(b"work", 9, b"work/t=9/peek", peeks=True)),
    (b"get work/close/open\r\n", get(b"work", key=b"work/close/open", opens=True, closes=True)),
    (b"get work/open/close\r\n", get(b"work", key=b"work/open/close", opens=True, closes=True)),
    (b"get work/t=9/open/close\r\n", get(b"work", 9, b"work/t=9/open/close", opens=True, closes=True)),
    (b"get work/open/t=9/close\r\n", get(b"work", 9, b"work/open/t=9/close", opens=True, closes=True)),
    (b"get work/abort/t=9\r\n", get(b"work", 9, b"work/abort/t=9", aborts=True)),
    (b"get work/OPEN\r\n", get(b"work", key=b"work/OPEN")),
    (b"get work/T=9\r\n", get(b"work", key=b"work/T=9")),
    (b"get work/what/open\r\n", get(b"work", key=b"work/what/open", opens=True)),
    (b"get work//open/\r\n", get(b"work", key=b"work//open/", opens=True)),
    # monitor, confirm
    (b"monitor work 10\r\n", values_of(commands.Monitor(b"work", 10_000, None))),
    (b"monitor work 10 5\r\n", values_of(commands.Monitor(b"work", 10_000, 5))),
    (b"monitor work 0 0\r\n", values_of(commands.Monitor(b"work", 0, 0))),
    (b"MONITOR work -1 -1\r\n", values_of(commands.Monitor(b"work", -1000, -1))),
    (b"confirm work 3\r\n", values_of(commands.Confirm(b"work", 3))),
    (b"confirm work 0\r\n", values_of(commands.Confirm(b"work", 0))),
    (b"confirm work -3\r\n", values_of(commands.Confirm(b"work", -3))),
    # whole queues, and the server
    (b"delete work\r\n", values_of(commands.Delete(b"work"))),
    (b"delete work 0\r\n", values_of(commands.Delete(b"work"))),
    (b"delete work noreply\r\n", values_of(commands.Delete(b"work", wants_reply=False))),
    (b"delete work 0 noreply\r\n", values_of(commands.Delete(b"work", wants_reply=False))),
    (b"delete noreply\r\n", values_of(commands.Delete(b"noreply"))),
    (b"flush work\r\n", values_of(commands.Flush(b"work"))),
    (b"flush_expired work\r\n", values_of(commands.FlushExpired(b"work"))),
    (b"flush_all\r\n", values_of(commands.FlushAll())),
    (b"flush_all noreply\r\n", values_of(commands.FlushAll(wants_reply=False))),
    (b"flush_all 0 noreply\r\n", values_of(commands.FlushAll(wants_reply=False))),
    (b"flush work noreply\r\n", values_of(commands.Flush(b"work"))),
    (b"get work noreply\r\n", get(b"work")),
    (b"flush_all_expired\r\n", values_of(commands.FlushAllExpired())),
    (b"version\r\n", values_of(commands.Version())),
    (b"Version \r\n", values_of(commands.Version())),
    (b"stats\r\n", values_of(commands.Stats())),
    (b"stats items slabs\r\n", values_of(commands.Stats())),
    (b"dump_stats\r\n", values_of(commands.DumpStats([]))),
    (b"dump_stats work other\r\n", values_of(commands.DumpStats([b"work", b"other"]))),
    (b"reload\r\n", values_of(commands.Reload())),
    (b"status\r\n", values_of(commands.Status(None))),
    (b"status Up\r\n", values_of(commands.Status(b"Up"))),
    (b"quit\r\n", values_of(commands.Quit())),
    (b"shutdown\r\n", values_of(commands.Shutdown())),
    # requests with errors that leave the next request readable
    (b"get\r\n", malformed(closes=OPEN)),
    (b"get /\r\n", malformed(closes=OPEN)),
    (b"get work/t=\r\n", malformed(closes=OPEN)),
    (b"get work/t=soon\r\n", malformed(closes=OPEN)),
    (b"get work/t=1.5\r\n", malformed(closes=OPEN)),
    (b"get work/t=1_000\r\n", malformed(closes=OPEN)),
    (b"get work/t=0x10\r\n", malformed(closes=OPEN)),
    (b"get work/t=2147483648\r\n", malformed(closes=OPEN)),
    (b"get work/t=-2147483649\r\n", malformed(closes=OPEN)),
    (b"get work/t=" + b"9" * 6000 + b"\r\n", malformed(closes=OPEN)),
    (b"get work/open/t=soon\r\n", malformed(closes=OPEN)),
    (b"delete\r\n", malformed(closes=OPEN)),
    (b"flush\r\n", malformed(closes=OPEN)),
    (b"flush_expired\r\n", malformed(closes=OPEN)),
    (b"confirm\r\n", malformed(closes=OPEN)),
    (b"confirm work\r\n", malformed(closes=OPEN)),
    (b"confirm work many\r\n", malformed(closes=OPEN)),
    (b"confirm work 2147483648\r\n", malformed(closes=OPEN)),
    (b"monitor\r\n", malformed(closes=OPEN)),
    (b"monitor work\r\n", malformed(closes=OPEN)),
    (b"monitor work soon\r\n", malformed(closes=OPEN)),
    (b"monitor work 10 many\r\n", malformed(closes=OPEN)),
    (b"set work x 0 5\r\nhello\r\n", malformed(closes=OPEN)),
    (b"set work 2147483648 0 5\r\nhello\r\n", malformed(closes=OPEN)),
    (b"set work 0 x 5\r\nhello\r\n", malformed(closes=OPEN)),
    (b"set work 0 1.5 5\r\nhello\r\n", malformed(closes=OPEN)),
    (b"set work x x 0\r\n\r\n", malformed(closes=OPEN)),
    (b"set work x 0 5 noreply\r\nhello\r\n", malformed(closes=OPEN, wants_reply=False)),
    (b"set work 0 x 5 noreply\r\nhello\r\n", malformed(closes=OPEN, wants_reply=False)),
    # requests with errors after which the stream cannot be trusted, or that the client cannot have meant
    (b"\r\n", malformed(closes=CLOSES)),
    (b"\n", malformed(closes=CLOSES)),
    (b"   \r\n", malformed(closes=CLOSES)),
    (b" get work\r\n", malformed(closes=CLOSES)),
    (b"frobnicate\r\n", malformed(closes=CLOSES)),
    (b"get\twork\r\n", malformed(closes=CLOSES)),
    (b"\x00\xff\n", malformed(closes=CLOSES)),
    (b"get /open\r\n", malformed(closes=CLOSES)),
    (b"get /t=5/peek\r\n", malformed(closes=CLOSES)),
    (b"get work/peek/open\r\n", malformed(closes=CLOSES)),
    (b"get work/close/peek\r\n", malformed(closes=CLOSES)),
    (b"get work/peek/abort\r\n", malformed(closes=CLOSES)),
    (b"get work/abort/open\r\n", malformed(closes=CLOSES)),
    (b"get work/close/abort\r\n", malformed(closes=CLOSES)),
    (b"set\r\n", malformed(closes=CLOSES)),
    (b"set work\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0 many\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0 5.0\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0 -1\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0 16777217\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0 99999999999\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0 5\r\nhello!!", malformed(closes=CLOSES)),
    (b"set work 0 0 5\r\nhello\n\n", malformed(closes=CLOSES)),
    (b"set work 0 0 5\r\nhello\n\r", malformed(closes=CLOSES)),
    (b"set work x 0 5\r\nhello!!", malformed(closes=CLOSES)),
    (b"add work 0 0 5\r\nhello\r\n", malformed(closes=CLOSES)),
    (b"replace work 0 0 5\r\nhello\r\n", malformed(closes=CLOSES)),
    (b"append work 0 0 5\r\nhello\r\n", malformed(closes=CLOSES)),
    (b"prepend work 0 0 5\r\nhello\r\n", malformed(closes=CLOSES)),
    (b"cas work 0 0 5 77\r\nhello\r\n", malformed(closes=CLOSES)),
    (b"add work 0 0 5 noreply\r\nhello\r\n", malformed(closes=CLOSES, wants_reply=False)),
    (b"cas work 0 0 5 77 noreply\r\nhello\r\n", malformed(closes=CLOSES, wants_reply=False)),
    (b"set work 0 0 16777217 noreply\r\n", malformed(closes=CLOSES, wants_reply=False)),
    (b"set work 0 0 99999999999 noreply\r\n", malformed(closes=CLOSES, wants_reply=False)),
    (b"set work 0 0 5 noreply\r\nhello!!", malformed(closes=CLOSES, wants_reply=False)),
    # The line cannot be parsed, so its `noreply` does not count either.
    (b"set work 0 noreply\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0 noreply\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0 many noreply\r\n", malformed(closes=CLOSES)),
    (b"set work 0 0 -1 noreply\r\n", malformed(closes=CLOSES)),
]

each_request = pytest.mark.parametrize(
    ("request_bytes", "expected"), REQUESTS, ids=[repr(request[:40])[1:] for request, _ in REQUESTS]
)


@each_request
def test_request_in_one_piece_is_read(request_bytes: bytes, expected: CommandValues) -> None:
    assert [values_of(command) for command in parse(request_bytes)] == [expected]


@each_request
def test_request_byte_by_byte_is_read(request_bytes: bytes, expected: CommandValues) -> None:
    codec = MemcacheCodec()
    *pieces, last = byte_by_byte(request_bytes)
    assert parse_with(codec, pieces) == []
    assert [values_of(command) for command in parse_with(codec, [last])] == [expected]


@each_request
def test_request_with_following_bytes_is_read(request_bytes: bytes, expected: CommandValues) -> None:
    made = [values_of(command) for command in parse(request_bytes + b"version\r\nver")]
    if ends_the_stream(expected):
        assert made == [expected]
    else:
        assert made == [expected, values_of(commands.Version())]


# Error reasons.


@pytest.mark.parametrize(
    ("request_bytes", "reason"),
    [
        (b"set work 0 x 5\r\nhello\r\n", "expiry is not a number"),
        (b"set work 0 0 5\r\nhello!!", "bad data chunk"),
        (b"set work 0 0 16777217\r\n", "item too large"),
        (b"set work 0 0 3000000000\r\n", "item too large"),
        (b"x" * 9000, "line too long"),
    ],
)
def test_error_has_the_documented_reason(request_bytes: bytes, reason: str) -> None:
    (command,) = parse(request_bytes)
    assert isinstance(command, commands.Malformed)
    assert command.reason == reason


# Limits.


def test_line_of_eight_kib_is_read() -> None:
    line = b"get work" + b" x" * ((8 * 1024 - 10) // 2)
    assert len(line + b"\r\n") == 8 * 1024
    assert [values_of(command) for command in parse(line + b"\r\n")] == [get(b"work")]


def test_line_over_eight_kib_is_too_long() -> None:
    line = b"get work " + b"x" * (8 * 1024)
    assert [values_of(command) for command in parse(line + b"\r\n")] == [malformed(closes=CLOSES)]


def test_unfinished_line_over_the_limit_is_too_long() -> None:
    codec = MemcacheCodec()
    codec.buffer.receive(b"x" * (8 * 1024 - 1))
    assert codec.next_command() is None
    codec.buffer.receive(b"xxxx")
    (command,) = drain(codec)
    assert values_of(command) == malformed(closes=CLOSES)
    assert len(codec) == 0


def test_line_limit_is_a_setting() -> None:
    assert [values_of(command) for command in parse(b"get work/t=100\r\n", max_line_bytes=12)] == [
        malformed(closes=CLOSES)
    ]
    assert [values_of(command) for command in parse(b"get work\r\n", max_line_bytes=12)] == [get(b"work")]


def test_line_limit_does_not_apply_to_data() -> None:
    data = b"x" * 20_000
    assert [values_of(command) for command in parse(b"set work 0 0 20000\r\n", data, b"\r\n")] == [put(b"work", data)]


def test_item_of_sixteen_mib_is_awaited() -> None:
    assert parse(b"set work 0 0 16777216\r\n", b"x" * 1000) == []


def test_item_over_the_limit_is_refused_before_its_data() -> None:
    assert [values_of(c) for c in parse(b"set work 0 0 101\r\n", max_item_bytes=100)] == [malformed(closes=CLOSES)]
    assert parse(b"set work 0 0 100\r\n", max_item_bytes=100) == []


def test_held_bytes_are_bounded_by_item_and_one_read() -> None:
    codec = MemcacheCodec(max_item_bytes=1000)
    codec.buffer.receive(b"set work 0 0 1000\r\n")
    most = 0
    for _ in range(10):
        assert codec.next_command() is None
        codec.buffer.receive(b"x" * 100)
        most = max(most, len(codec))
    codec.buffer.receive(b"\r\n" + b"version\r\n" * 10)
    most = max(most, len(codec))
    assert len(drain(codec)) == 11
    assert len(codec) == 0
    assert 1000 <= most <= 1000 + 2 + 100


def test_held_bytes_are_bounded_by_line_and_one_read() -> None:
    codec = MemcacheCodec(max_line_bytes=100)
    most = 0
    for _ in range(1000):
        codec.buffer.receive(b"x" * 10)
        most = max(most, len(codec))
        codec.next_command()
    assert 100 <= most <= 100 + 10


def test_input_after_a_fatal_error_is_dropped() -> None:
    codec = MemcacheCodec()
    codec.buffer.receive(b"set work 0 0 -1\r\nset work 0 0 5\r\nhello\r\n")
    assert [values_of(command) for command in drain(codec)] == [malformed(closes=CLOSES)]
    assert len(codec) == 0
    codec.buffer.receive(b"version\r\n" * 1000)
    assert len(codec) == 0
    assert drain(codec) == []


def test_held_bytes_are_those_not_yet_parsed() -> None:
    codec = MemcacheCodec()
    codec.buffer.receive(b"get work\r\nget ot")
    assert len(codec) == 16
    codec.next_command()
    assert len(codec) == 6


@pytest.mark.parametrize("begin", [b"get ", b"set work 0 0 %d\r\n" % (2 * MANY_BYTES)], ids=["line", "block"])
def test_one_byte_at_a_time_costs_linear_work(begin: bytes) -> None:
    make = partial(MemcacheCodec, max_line_bytes=2 * MANY_BYTES, max_item_bytes=2 * MANY_BYTES)
    assert small_pieces_cost_the_same_behind_much(make, begin, b"x")


@given(
    items=st.lists(
        st.tuples(st.binary(min_size=1, max_size=8).filter(lambda name: not set(name) & set(b" \n\r/")), st.binary()),
        max_size=5,
    )
)
def test_items_keep_their_bytes(items: list[tuple[bytes, bytes]]) -> None:
    stream = b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (name, len(data), data) for name, data in items)
    assert [values_of(command) for command in parse(stream)] == [put(name, data) for name, data in items]


REPEATED = [
    b"get work\r\n",
    b"get work\n",
    b"get work/open\r\n",
    b"set work 0 0 10\r\nget work\r\n\r\n",
    b"set work 0 0 1\r\n\n\r\n",
    b"version\r\n",
]


@given(requests=st.lists(st.sampled_from(REPEATED), max_size=20), size=st.integers(1, 60))
def test_repeated_lines_are_read_like_the_first(requests: list[bytes], size: int) -> None:
    stream = b"".join(requests)
    expected = [values_of(command) for request in requests for command in parse(request)]
    assert [values_of(command) for command in parse(*cut_at(stream, range(size, len(stream), size)))] == expected


def test_idle_client_keeps_one_line_of_a_dropped_cache() -> None:
    idle = MemcacheCodec()
    assert len(parse_with(idle, [b"get idle\r\n"])) == 1
    busy = MemcacheCodec()
    for number in range(10_000):
        for name in (b"idle", b"%d" % number):
            assert len(parse_with(busy, [b"get %b\r\n" % name])) == 1
    kept, line = 0, idle._last_line
    while line is not None and line.following is not line:
        kept, line = kept + 1, line.following
        assert kept < 4096
    assert line is not None


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (commands.Delete(b"work"), b"DELETED\r\n"),
        (commands.Flush(b"work"), b"END\r\n"),
        (commands.FlushAll(), b"Flushed all queues.\r\n"),
        (commands.Confirm(b"work", 1), b"END\r\n"),
        (commands.Reload(), b"Reloaded config.\r\n"),
        (commands.Status(b"up"), b"END\r\n"),
    ],
)
def test_done_answers_the_word_of_each_command(command: commands.Command, reply: bytes) -> None:
    assert MemcacheCodec().done(command) == reply


# Results to bytes.


def test_names_keep_their_bytes() -> None:
    codec = MemcacheCodec()
    assert b"queue 'w\xff\xc3\xb6' {" in codec.dump_stats(commands.DumpStats(()), b"w\xff\xc3\xb6", [])
    assert codec.item(commands.Get(b"w\xff"), b"x").startswith(b"VALUE w\xff 0 1\r\n")


@pytest.mark.parametrize(
    ("error", "reply", "closes"),
    [
        (errors.TooManyOpenReads("why"), b"ERROR\r\n", CLOSES),
        (errors.OpenReadExists("why"), b"ERROR\r\n", CLOSES),
        (errors.TooFewOpenReads("why"), b"ERROR\r\n", OPEN),
        (errors.ClientError("expiry is not a number"), b"CLIENT_ERROR expiry is not a number\r\n", OPEN),
        (errors.BadQueueName("why"), b"CLIENT_ERROR why\r\n", OPEN),
        (errors.Unavailable("why"), b"SERVER_ERROR why\r\n", CLOSES),
        (errors.StorageRefused("disk full"), b"SERVER_ERROR disk full\r\n", OPEN),
        (errors.QueueFailed("why"), b"SERVER_ERROR why\r\n", OPEN),
        (errors.StorageError("why"), b"SERVER_ERROR why\r\n", OPEN),
    ],
)
def test_errors_are_encoded(error: Exception, reply: bytes, closes: bool) -> None:
    assert MemcacheCodec().error(PUT, error) == (reply, closes)


@pytest.mark.parametrize(
    "error", [errors.QueueFailed("one\r\ntwo\nthree"), errors.QueueFailed("Übel \N{SNOWMAN}"), ValueError("a\nb")]
)
def test_error_is_one_line_whatever_its_text(error: Exception) -> None:
    reply, _ = MemcacheCodec().error(PUT, error)
    assert reply.startswith(b"SERVER_ERROR ")
    assert reply.endswith(b"\r\n")
    assert b"\n" not in reply[:-2] and b"\r" not in reply[:-2]
