"""kestrel-cli: putting and taking items, with a server at the other end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tools.tool_runner import Clock
from tests.child import PATIENCE_S
from tests.client.scripted import scripted, talk
from tests.server.running import Server
from tests.tools.conftest import Cli
from tests.tools.tool_processes import command, environment

ANY = bytes(range(256))


def prefixed(*items: bytes) -> bytes:
    return b"".join(len(item).to_bytes(4, "big") + item for item in items)


def contents(server: Server, queue: bytes) -> list[bytes]:
    """All that is in a queue, taken from it."""
    with server.connect() as client:
        return list(iter(lambda: client.get(queue), None))


def pauses(paused: list[float], ends_after: int = 100) -> Callable[[float], None]:
    """In place of a pause; at the last one somebody presses Ctrl-C."""

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == ends_after:
            raise KeyboardInterrupt

    return pause


def put(server: Server, *items: bytes) -> None:
    with server.connect() as client:
        client.put(b"work", *items)


# put


def test_items_are_put_in_their_order(server: Server, cli: Cli) -> None:
    assert cli("put", "work", "a", b"caf\xc3\xa9", b"\xff", "") == (0, b"4 items put\n", "")
    assert cli("put", "work", "--", "-x", "-q") == (0, b"2 items put\n", "")
    assert cli("put", "work", "y", "-q", "z") == (0, b"", "")
    assert contents(server, b"work") == [b"a", b"caf\xc3\xa9", b"\xff", b"", b"-x", b"-q", b"y", b"z"]


def test_items_of_standard_input_are_its_lines(server: Server, cli: Cli) -> None:
    status, out, said = cli("put", "work", stdin=b"a\n\nb \xff\r\nc")
    assert (status, said) == (0, "")
    assert out.startswith(b"4 items put in ") and out.endswith(b" s\n")
    assert contents(server, b"work") == [b"a", b"", b"b \xff\r", b"c"]


def test_or_stand_behind_their_lengths_or_are_all_of_it(server: Server, cli: Cli) -> None:
    assert cli("put", "--quiet", "--length-prefixed", "work", stdin=prefixed(ANY, b"", ANY)) == (0, b"", "")
    assert cli("put", "--quiet", "--whole", "work", stdin=ANY) == (0, b"", "")
    assert contents(server, b"work") == [ANY, b"", ANY, ANY]


def test_nothing_is_put_of_an_empty_input(server: Server, cli: Cli) -> None:
    assert cli("put", "work")[:2] == (0, b"0 items put in 0.0 s\n")


def test_the_largest_item_can_be_put_and_taken(server: Server, cli: Cli) -> None:
    assert cli("put", "-q", "--whole", "work", stdin=b"x" * MAX_ITEM_BYTES)[0] == 0
    assert cli("get", "work") == (0, b"x" * MAX_ITEM_BYTES + b"\n", "")


def test_an_item_expires_in_the_time_that_is_given(server: Server, cli: Cli) -> None:
    assert cli("put", "work", "--expires-in", "1h", "a")[0] == 0
    [record] = (server.log.parent / "queues").glob("work")
    add_ms, expiry_ms = (int.from_bytes(record.read_bytes()[start : start + 8], "little") for start in (5, 13))
    assert 3_599_000 <= expiry_ms - add_ms <= 3_601_000


@pytest.mark.parametrize("expires_in", ["12d", "999999.5"])
def test_an_expiry_that_memcache_cannot_say_is_a_mistake(server: Server, cli: Cli, expires_in: str) -> None:
    status, _, said = cli("put", "work", "--expires-in", expires_in, "a")
    assert status == 2
    assert "use --protocol thrift" in said


def test_an_expiry_that_no_protocol_can_say_is_a_mistake(cli: Cli) -> None:
    for protocol in ("memcache", "thrift"):
        status, _, said = cli("put", "work", "--protocol", protocol, "--expires-in", "30d", "a")
        assert (status, "thrift" in said.splitlines()[-1]) == (2, False)
        assert "'30d' is more than 2147483 seconds (24 days), the maximum" in said


def test_what_a_limit_refuses_is_told_by_its_number(server: Server, cli: Cli) -> None:
    refused = "was refused by a limit of the queue small (maxItems, maxSize or maxItemSize)"
    status, out, said = cli("put", "small", stdin=b"a\nb\nc\nd\ne\n")
    assert (status, out) == (1, b"")
    assert said == f"kestrel-cli: item 4 {refused}\nkestrel-cli: 3 items put; not put: 4 and all that follow\n"
    status, _, said = cli("put", "small", "f", "g")
    assert said == f"kestrel-cli: item 1 {refused}\nkestrel-cli: 0 items put; not put: 1 to 2\n"
    assert contents(server, b"small") == [b"a", b"b", b"c"]
    assert cli("put", "small", *range(1200))[2].endswith("\nkestrel-cli: 3 items put; not put: 4 to 1200\n")
    assert cli("put", "--quiet", "small", "h") == (
        1,
        b"",
        f"kestrel-cli: item 1 {refused}\nkestrel-cli: 0 items put; not put: 1\n",
    ), "also to who wants to hear no more than that"


def test_what_went_in_behind_a_refused_item_is_told_as_well(server: Server, cli: Cli) -> None:
    status, _, said = cli("put", "picky", *["x", "yy", "x", "yy", "yy", "x"])
    assert status == 1
    assert said.startswith("kestrel-cli: item 2 was refused ")
    assert said.endswith("\nkestrel-cli: 3 items put; not put: 2, 4 to 5\n")
    assert cli("put", "picky", stdin=b"yy\nx\n" * 12)[2].endswith(
        "\nkestrel-cli: 12 items put; not put: 1, 3, 5, 7, 9, 11, 13, 15 and 4 more, and 25 and all that follow\n"
    )


@pytest.mark.parametrize("protocol", ["memcache", "thrift"])
def test_both_protocols_say_the_same(server: Server, cli: Cli, protocol: str) -> None:
    options = ["--protocol", protocol, "--server", f"127.0.0.1:{server.port_of(protocol)}"]
    status, _, said = cli(*options, "put", "small", stdin=b"a\nb\nc\nd\ne\n")
    assert (status, said.partition("\n")[2]) == (1, "kestrel-cli: 3 items put; not put: 4 and all that follow\n")
    assert cli(*options, "peek", "small") == (0, b"a\n", "")
    assert cli(*options, "get", "--all", "small") == (0, b"a\nb\nc\n", "")
    assert cli(*options, "get", "small") == (1, b"", "")


def test_garbage_in_place_of_a_length_is_told_with_what_went_in_before(server: Server, cli: Cli) -> None:
    status, _, said = cli("put", "--length-prefixed", "work", stdin=prefixed(b"a", b"b") + b"GET / HTTP/1.1")
    assert status == 1
    assert said.startswith("kestrel-cli: the length of item 3, at byte 10, says 1195725856 bytes, ")
    assert said.endswith("\nkestrel-cli: 2 items put; not put: 3 and all that follow\n")
    assert contents(server, b"work") == [b"a", b"b"]


def test_an_input_that_cannot_be_read_is_an_error(server: Server, cli: Cli, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as to_be_written:
        put_all = command("cli", "put", "work")
        done = subprocess.run(
            put_all, stdin=to_be_written, capture_output=True, env=environment(server), timeout=PATIENCE_S
        )
    assert done.returncode == 1
    assert done.stderr.startswith(
        b"kestrel-cli: standard input cannot be read: Bad file descriptor\nkestrel-cli: 0 items put; "
    )
    status, _, said = cli("put", "work", stdin=None)
    assert (status, said) == (2, "kestrel-cli: standard input is closed: give the items as arguments\n")


@pytest.mark.parametrize(("address", "status"), [("", 0), ("127.0.0.1:1", 3)])
def test_nobody_has_to_be_there_to_be_told(server: Server, address: str, status: int) -> None:
    """Standard error is closed: what is said is said to nobody, and the exit status is what it is."""
    options = ["--server", address] if address else []
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command("cli", *options, "put", "untold")]
    done = subprocess.run(closed, input=b"a\nb\n", stdout=subprocess.PIPE, env=environment(server), timeout=120)
    assert done.returncode == status
    assert contents(server, b"untold") == ([] if status else [b"a", b"b"])


# get


def test_get_takes_one_and_says_by_its_status_when_there_is_none(server: Server, cli: Cli) -> None:
    put(server, b"a", b"b")
    assert cli("get", "work") == (0, b"a\n", "")
    assert cli("get", "work", "-n", "5") == (0, b"b\n", "")
    assert cli("get", "work") == (1, b"", "")
    assert cli("get", "--wait", "1ms", "work") == (1, b"", "")


def test_a_wait_may_be_longer_than_a_request_can_say(cli: Cli) -> None:
    """It is asked anew, day by day."""
    day, item = b"get work/t=86400000/open\r\n", b"VALUE work 0 1\r\na\r\nEND\r\n"
    version = (b"version\r\n", b"VERSION 1\r\n")
    with scripted(talk((day, b"END\r\n"), version, (day, item), (b"confirm work 1\r\n", b"END\r\n"))) as server:
        assert cli("--server", server.address, "get", "--wait", "30d", "work") == (0, b"a\n", "")


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 250])
def test_get_takes_as_many_as_were_asked_for_and_no_more(server: Server, cli: Cli, count: int) -> None:
    items = [b"%d" % number for number in range(count + 1)]
    put(server, *items)
    assert cli("get", "work", "-n", count) == (0, b"".join(item + b"\n" for item in items[:-1]), "")
    assert cli("get", "--all", "work") == (0, items[-1] + b"\n", "")
    assert open_reads(server) == 0


def open_reads(server: Server) -> int:
    with server.connect() as client:
        return int(client.stats()["queue_work_open_transactions"])


def test_items_are_written_as_they_are(server: Server, cli: Cli) -> None:
    put(server, b"\x1b[2J\x00\xff")
    assert cli("get", "work") == (0, b"\x1b[2J\x00\xff\n", "")


def test_an_item_with_a_line_feed_brings_one_warning(server: Server, cli: Cli) -> None:
    put(server, b"a\nb", b"c\nd")
    status, out, said = cli("get", "--all", "work")
    assert (status, out) == (0, b"a\nb\nc\nd\n")
    assert said == (
        "kestrel-cli: an item has a line feed in it: use --length-prefixed or --json to tell where items end\n"
    )


def test_items_with_any_bytes_go_from_queue_to_queue_by_their_lengths(server: Server, cli: Cli) -> None:
    put(server, ANY, b"", b"\n")
    status, out, said = cli("get", "--all", "--length-prefixed", "work")
    assert (status, out, said) == (0, prefixed(ANY, b"", b"\n"), "")
    assert cli("put", "-q", "--length-prefixed", "other", stdin=out)[0] == 0
    assert contents(server, b"other") == [ANY, b"", b"\n"]


def test_json_has_text_or_base64(server: Server, cli: Cli) -> None:
    put(server, b"a\n", b"caf\xc3\xa9", b"\xff")
    status, out, said = cli("get", "--all", "--json", "work")
    assert (status, said) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [{"data": "a\n"}, {"data": "café"}, {"base64": "/w=="}]


def test_peek_leaves_the_item_where_it_is(server: Server, cli: Cli) -> None:
    assert cli("peek", "work") == (1, b"", "")
    put(server, b"a")
    assert cli("peek", "work") == (0, b"a\n", "")
    assert cli("peek", "--length-prefixed", "work") == (0, prefixed(b"a"), "")
    assert contents(server, b"work") == [b"a"]


# monitor


def test_a_monitor_shows_so_many_as_they_come(server: Server, cli: Cli) -> None:
    put(server, b"a", b"b", b"c")
    assert cli("monitor", "-n", "2", "work") == (0, b"a\nb\n", "")
    assert contents(server, b"work") == [b"c"]


def test_a_monitor_ends_with_its_time(server: Server, cli: Cli) -> None:
    put(server, b"a", b"b", b"c")
    times = iter(range(100))
    assert cli("monitor", "--for", "2", "work", clock=Clock(lambda: next(times), pauses([]))) == (0, b"a\nb\nc\n", "")


def test_an_alias_is_not_asked_all_the_time(server: Server, cli: Cli) -> None:
    paused: list[float] = []
    assert cli("monitor", "orders", clock=Clock(lambda: 5.0, pauses(paused, ends_after=3))) == (0, b"", "")
    assert paused == [1.0, 1.0, 1.0]
