"""kestrel-cli: putting and taking items."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tools.tool_runner import Clock
from tests.server.running import Server
from tests.tools.conftest import Cli, error_of, pauses, put, take_all, with_scripted
from tests.tools.test_splitting import prefixed
from tests.tools.tool_processes import command, environment, run, run_command

ANY = bytes(range(256))


# put


def test_items_are_put_in_order(server: Server, cli: Cli) -> None:
    assert cli("put", "work", "a", b"caf\xc3\xa9", b"\xff", "") == (0, b"4 items put\n", "")
    assert cli("put", "work", "--", "-x", "-q") == (0, b"2 items put\n", "")
    assert cli("put", "work", "y", "-q", "z") == (0, b"", "")
    assert take_all(server, b"work") == [b"a", b"caf\xc3\xa9", b"\xff", b"", b"-x", b"-q", b"y", b"z"]


def test_lines_of_standard_input_are_items(server: Server, cli: Cli) -> None:
    status, out, said = cli("put", "work", stdin=b"a\n\nb \xff\r\nc")
    assert (status, said) == (0, "")
    assert out.startswith(b"4 items put in ") and out.endswith(b" s\n")
    assert take_all(server, b"work") == [b"a", b"", b"b \xff\r", b"c"]


def test_input_may_be_length_prefixed_or_one_item(server: Server, cli: Cli) -> None:
    assert cli("put", "--quiet", "--length-prefixed", "work", stdin=prefixed(ANY, b"", ANY)) == (0, b"", "")
    assert cli("put", "--quiet", "--whole", "work", stdin=ANY) == (0, b"", "")
    assert take_all(server, b"work") == [ANY, b"", ANY, ANY]


def test_empty_input_puts_nothing(server: Server, cli: Cli) -> None:
    assert cli("put", "work")[:2] == (0, b"0 items put in 0.0 s\n")


def test_largest_item_is_put_and_taken(server: Server, cli: Cli) -> None:
    assert cli("put", "-q", "--whole", "work", stdin=b"x" * MAX_ITEM_BYTES)[0] == 0
    assert cli("get", "work") == (0, b"x" * MAX_ITEM_BYTES + b"\n", "")


def test_item_expires_after_the_given_time(server: Server, cli: Cli) -> None:
    assert cli("put", "work", "--expires-in", "1h", "a")[0] == 0
    [record] = (server.log.parent / "queues").glob("work")
    add_ms, expiry_ms = (int.from_bytes(record.read_bytes()[start : start + 8], "little") for start in (5, 13))
    assert 3_599_000 <= expiry_ms - add_ms <= 3_601_000


def test_item_with_a_delay_becomes_visible_later(server: Server, cli: Cli) -> None:
    assert cli("put", "work", "--delay", "1h", "later")[:2] == (0, b"1 item put\n")
    assert cli("put", "work", "--delay", "10ms", "soon")[0] == 0
    assert cli("get", "work", "--wait", "10s") == (0, b"soon\n", "")
    assert cli("get", "work")[:2] == (1, b"")


@pytest.mark.parametrize("expires_in", ["12d", "999999.5"])
def test_expiry_impossible_on_memcache_is_a_usage_error(server: Server, cli: Cli, expires_in: str) -> None:
    said = error_of(cli, 2, "put", "work", "--expires-in", expires_in, "a")
    assert "use --protocol thrift" in said


def test_expiry_impossible_on_any_protocol_is_a_usage_error(cli: Cli) -> None:
    for protocol in ("memcache", "thrift"):
        status, _, said = cli("put", "work", "--protocol", protocol, "--expires-in", "30d", "a")
        assert (status, "thrift" in said.splitlines()[-1]) == (2, False)
        assert "'30d' is more than 2147483 seconds (24 days), the maximum" in said


def test_refused_item_is_reported_with_its_number(server: Server, cli: Cli) -> None:
    refused = "was refused by a limit of the queue small: maxItems = 3"
    said = error_of(cli, 1, "put", "small", stdin=b"a\nb\nc\nd\ne\n")
    assert said == f"kestrel-cli: item 4 {refused}\nkestrel-cli: 3 items put; not put: items 4 and all that follow\n"
    said = error_of(cli, 1, "put", "small", "f", "g")
    assert said == f"kestrel-cli: item 1 {refused}\nkestrel-cli: 0 items put; not put: items 1 to 2\n"
    assert take_all(server, b"small") == [b"a", b"b", b"c"]
    assert cli("put", "small", *range(1200))[2].endswith("\nkestrel-cli: 3 items put; not put: items 4 to 1200\n")
    assert cli("put", "--quiet", "small", "h") == (
        1,
        b"",
        f"kestrel-cli: item 1 {refused}\nkestrel-cli: 0 items put; not put: item 1\n",
    )


def test_refusal_by_an_alias_destination_names_possible_limits(server: Server, cli: Cli) -> None:
    assert cli("put", "small", "a", "b", "c")[0] == 0
    said = cli("put", "orders", "d")[2]
    limits = "or of one that also gets its items (maxItems, maxSize or maxItemSize)"
    assert said.startswith(f"kestrel-cli: item 1 was refused by a limit of the queue orders {limits}\n")


def test_items_put_after_a_refused_one_are_reported(server: Server, cli: Cli) -> None:
    said = error_of(cli, 1, "put", "picky", *["x", "yy", "x", "yy", "yy", "x"])
    assert said.startswith("kestrel-cli: item 2 was refused by a limit of the queue picky: maxItemSize = 1B\n")
    assert said.endswith("\nkestrel-cli: 3 items put; not put: items 2, 4 to 5\n")
    assert cli("put", "picky", stdin=b"yy\nx\n" * 12)[2].endswith(
        "\nkestrel-cli: 12 items put; not put: items 1, 3, 5, 7, 9, 11, 13, 15 and 4 more, and 25 and all that follow\n"
    )


@pytest.mark.parametrize("protocol", ["memcache", "thrift"])
def test_both_protocols_give_the_same_results(server: Server, cli: Cli, protocol: str) -> None:
    options = ["--protocol", protocol, "--server", f"127.0.0.1:{server.port_of(protocol)}"]
    status, _, said = cli(*options, "put", "small", stdin=b"a\nb\nc\nd\ne\n")
    assert (status, said.partition("\n")[2]) == (1, "kestrel-cli: 3 items put; not put: items 4 and all that follow\n")
    assert cli(*options, "peek", "small") == (0, b"a\n", "")
    assert cli(*options, "get", "--all", "small") == (0, b"a\nb\nc\n", "")
    assert cli(*options, "get", "small") == (1, b"", "")


def test_unreadable_input_is_an_error(server: Server, cli: Cli, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as to_be_written:
        done = run("cli", "put", "work", stdin=to_be_written, env=environment(server))
    assert done.returncode == 1
    assert done.stderr.startswith(
        b"kestrel-cli: standard input cannot be read: Bad file descriptor\nkestrel-cli: 0 items put; "
    )
    said = error_of(cli, 2, "put", "work", stdin=None)
    assert said == "kestrel-cli: standard input is closed: give the items as arguments\n"


@pytest.mark.parametrize(("address", "status"), [("", 0), ("127.0.0.1:1", 3)])
def test_closed_standard_error_does_not_change_the_status(server: Server, address: str, status: int) -> None:
    options = ["--server", address] if address else []
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command("cli", *options, "put", "untold")]
    done = run_command(closed, input=b"a\nb\n", env=environment(server))
    assert done.returncode == status
    assert take_all(server, b"untold") == ([] if status else [b"a", b"b"])


# get


def test_get_takes_one_item_and_has_status_1_without_one(server: Server, cli: Cli) -> None:
    put(server, b"a", b"b")
    assert cli("get", "work") == (0, b"a\n", "")
    assert cli("get", "work", "-n", "5") == (0, b"b\n", "")
    assert cli("get", "work") == (1, b"", "")
    assert cli("get", "--wait", "1ms", "work") == (1, b"", "")


def test_long_wait_is_split_into_days(cli: Cli) -> None:
    day, item = b"get work/t=86400000/open\r\n", b"VALUE work 0 1\r\na\r\nEND\r\n"
    version, confirm = (b"version\r\n", b"VERSION 1\r\n"), (b"confirm work 1\r\n", b"END\r\n")
    exchanges = [(day, b"END\r\n"), version, (day, item), confirm]
    assert with_scripted(cli, exchanges, "get", "--wait", "30d", "work") == (0, b"a\n", "")


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 250])
def test_get_takes_the_requested_number_of_items(server: Server, cli: Cli, count: int) -> None:
    items = [b"%d" % number for number in range(count + 1)]
    put(server, *items)
    assert cli("get", "work", "-n", count) == (0, b"".join(item + b"\n" for item in items[:-1]), "")
    assert cli("get", "--all", "work") == (0, items[-1] + b"\n", "")
    assert open_reads(server) == 0


def open_reads(server: Server) -> int:
    with server.connect() as client:
        return int(client.stats()["queue_work_open_transactions"])


def test_item_with_a_line_feed_causes_one_warning(server: Server, cli: Cli) -> None:
    put(server, b"a\nb", b"c\nd")
    status, out, said = cli("get", "--all", "work")
    assert (status, out) == (0, b"a\nb\nc\nd\n")
    assert said == (
        "kestrel-cli: an item has a line feed in it: use --length-prefixed or --json to tell where items end\n"
    )


def test_length_prefixed_items_have_any_bytes(server: Server, cli: Cli) -> None:
    put(server, ANY, b"", b"\n")
    status, out, said = cli("get", "--all", "--length-prefixed", "work")
    assert (status, out, said) == (0, prefixed(ANY, b"", b"\n"), "")
    assert cli("put", "-q", "--length-prefixed", "other", stdin=out)[0] == 0
    assert take_all(server, b"other") == [ANY, b"", b"\n"]


def test_json_has_text_or_base64(server: Server, cli: Cli) -> None:
    put(server, b"a\n", b"caf\xc3\xa9", b"\xff")
    status, out, said = cli("get", "--all", "--json", "work")
    assert (status, said) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [{"data": "a\n"}, {"data": "café"}, {"base64": "/w=="}]


def test_peek_leaves_the_item(server: Server, cli: Cli) -> None:
    assert cli("peek", "work") == (1, b"", "")
    put(server, b"a")
    assert cli("peek", "work") == (0, b"a\n", "")
    assert cli("peek", "--length-prefixed", "work") == (0, prefixed(b"a"), "")
    assert take_all(server, b"work") == [b"a"]


# monitor


def test_monitor_ends_after_n_items(server: Server, cli: Cli) -> None:
    put(server, b"a", b"b", b"c")
    assert cli("monitor", "-n", "2", "work") == (0, b"a\nb\n", "")
    assert take_all(server, b"work") == [b"c"]


def test_monitor_ends_after_its_time(server: Server, cli: Cli) -> None:
    put(server, b"a", b"b", b"c")
    times = iter(range(100))
    assert cli("monitor", "--for", "2", "work", clock=Clock(lambda: next(times), pauses([]))) == (0, b"a\nb\nc\n", "")


def test_monitor_of_an_alias_pauses(server: Server, cli: Cli) -> None:
    paused: list[float] = []
    assert cli("monitor", "orders", clock=Clock(lambda: 5.0, pauses(paused, ends_after=3))) == (0, b"", "")
    assert paused == [1.0, 1.0, 1.0]
