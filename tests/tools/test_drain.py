"""kestrel-cli drain: items of other servers move to this one, and none is lost."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kestrel.protocols.memcache import MAX_ITEM_BYTES
from tests.child import Child
from tests.client.scripted import reset, scripted, talk
from tests.server.running import PATIENCE_S, Processes, Server, eventually
from tests.tools.conftest import Cli, error_of, take_all, with_scripted
from tests.tools.other_servers import Darner, OtherServer, Siberite, serving
from tests.tools.tool_processes import command, environment

BINARY = (b"a", bytes(range(256)), b"END\r\nVALUE work 0 1\r\n", b"\r\n", b"x" * 100_000, b"z")
NUMBERS = [b"%d" % number for number in range(300)]
STATS = b"STAT queue_work_items 2\r\nSTAT queue_work_open_transactions 0\r\nEND\r\n"
VALUE = b"VALUE work 0 1\r\n%b\r\nEND\r\n"


@pytest.fixture(params=[Darner, Siberite])
def source(request: pytest.FixtureRequest) -> Iterator[OtherServer]:
    server: OtherServer = request.param()
    with serving(server):
        yield server


@pytest.fixture
def darner() -> Iterator[Darner]:
    server = Darner()
    with serving(server):
        yield server


@pytest.fixture
def siberite() -> Iterator[Siberite]:
    server = Siberite()
    with serving(server):
        yield server


def test_items_with_any_bytes_are_moved_in_order(cli: Cli, server: Server, source: OtherServer) -> None:
    source.fill(b"work", *BINARY)
    assert cli("drain", "--from", source.address, "work") == (0, b"work: 6 items moved\n", "")
    assert take_all(server, b"work") == list(BINARY)
    assert (source.items(b"work"), source.held) == ([], {b"work": 0})
    assert cli("drain", "--from", source.address, "work") == (0, b"work: 0 items moved\n", "")
    assert cli("drain", "--quiet", "--from", source.address, "work") == (0, b"", "")


def test_all_queues_are_drained(cli: Cli, server: Server, darner: Darner) -> None:
    darner.fill(b"work", b"a", b"b")
    darner.fill(b"other", b"c")
    darner.fill(b"void")
    status, out, said = cli("drain", "--from", darner.address, "--all")
    assert (status, out, said) == (0, b"other: 1 item moved\nwork: 2 items moved\n", "")
    assert (take_all(server, b"work"), take_all(server, b"other")) == ([b"a", b"b"], [b"c"])


def test_json_reports_every_queue(cli: Cli, server: Server, darner: Darner) -> None:
    darner.fill(b"work", b"a")
    darner.fill(b"other")
    status, out, _ = cli("drain", "--from", darner.address, "--all", "--json")
    assert status == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"queue": "other", "to": "other", "moved": 0, "left": 0},
        {"queue": "work", "to": "work", "moved": 1, "left": 0},
    ]


def test_cursor_is_not_drained_as_a_queue(cli: Cli, server: Server, siberite: Siberite) -> None:
    siberite.fill(b"work", b"a")
    siberite.cursors[b"work.audit"] = deque([b"a"])
    status, out, said = cli("drain", "--from", siberite.address, "--all")
    assert (status, out) == (0, b"work: 1 item moved\n")
    assert said == "kestrel-cli: work.audit is a cursor, which has no items of its own, and is not drained\n"


def test_empty_item_of_siberite_is_not_the_end(cli: Cli, server: Server, siberite: Siberite) -> None:
    siberite.fill(b"work", b"a", b"", b"", b"b", b"")
    assert cli("drain", "--from", siberite.address, "work") == (0, b"work: 2 items moved\n", "")
    assert (take_all(server, b"work"), siberite.items(b"work")) == ([b"a", b"b"], [])


def test_queue_may_be_renamed(cli: Cli, server: Server, darner: Darner) -> None:
    darner.fill(b"work.high", b"a")
    said = error_of(cli, 1, "drain", "--from", darner.address, "--all")
    assert said == (
        "kestrel-cli: work.high is not drained: a queue name cannot hold / ~ . white space or control characters; "
        "drain it alone, with a new name in --as\n"
    )
    status, out, said = cli("drain", "--from", darner.address, "--as", "work", "work.high")
    assert (status, out, said) == (0, b"work.high: 1 item moved to work\n", "")
    assert take_all(server, b"work") == [b"a"]


def test_parents_are_drained_before_children_without_duplicates(cli: Cli, server: Server, processes: Processes) -> None:
    old = processes.serve('queuePath = "queues"\n')
    with old.connect() as client:
        client.get(b"work+b")
        client.get(b"work+a")
        client.put(b"work", b"1", b"2")
    status, out, said = cli("drain", "--from", f"127.0.0.1:{old.port}", "--all")
    assert (status, said) == (0, "")
    assert out == b"work: 2 items moved\nwork+a: 2 items moved\nwork+b: 2 items moved\n"
    with old.connect() as client:
        client.put(b"work", b"3")
    status, out, said = cli("drain", "--from", f"127.0.0.1:{old.port}", "--all")
    assert (status, out) == (1, b"work+a: 1 item moved\nwork+b: 1 item moved\n")
    assert said == (
        "kestrel-cli: work is not drained: at the target there is work+a, which would get each item as well; "
        "drain into another queue with --as, or delete its children there\n"
    )
    try:
        assert take_all(server, b"work") == [b"1", b"2"]
        assert take_all(server, b"work+a") == take_all(server, b"work+b") == [b"1", b"2", b"3"]
    finally:
        with server.connect() as client:
            for name in (b"work+a", b"work+b"):
                client.ask(b"delete %b\r\n" % name, b"DELETED\r\n")


def test_items_held_by_others_are_left_and_reported(cli: Cli, server: Server, processes: Processes) -> None:
    old = processes.serve('queuePath = "queues"\n')
    with old.connect() as client, old.connect() as holder:
        client.put(b"work", b"1", b"2")
        assert holder.get(b"work/open") == b"1"
        status, out, said = cli("drain", "--from", f"127.0.0.1:{old.port}", "work")
        assert (status, out) == (1, b"work: 1 item moved\n")
        assert f"work: 1 item left at 127.0.0.1:{old.port}, held by other clients" in said


def test_refused_items_stay_at_the_source(cli: Cli, server: Server, source: OtherServer) -> None:
    source.fill(b"small", *NUMBERS[:5])
    said = error_of(cli, 1, "drain", "--from", source.address, "small")
    assert "refused by a limit of the queue small" in said
    assert said.endswith("kestrel-cli: small: 3 items moved; all others are at the source\n")
    assert take_all(server, b"small") == NUMBERS[:3]
    eventually(lambda: source.items(b"small") == NUMBERS[3:5], "what was open is back")


def test_item_that_is_too_large_stays_at_the_source(cli: Cli, server: Server) -> None:
    value = b"VALUE work 0 %d\r\n" % (MAX_ITEM_BYTES + 1)
    exchanges = [(b"stats\r\n", STATS), (b"get work/open\r\n", value)]
    said = error_of(with_scripted, 3, cli, exchanges, "drain", "--from", "SERVER", "work")
    assert f"the item at the head has {MAX_ITEM_BYTES + 1} bytes" in said


# Servers that fail.


def test_lost_source_reports_the_item_that_may_be_doubled(cli: Cli, server: Server) -> None:
    asked = (b"stats\r\n", STATS), (b"get work/open\r\n", VALUE % b"1"), (b"get work/close/open\r\n", VALUE % b"2")
    with scripted(reset(*asked, (b"get work/close/open\r\n", b"VAL"))) as old:
        said = error_of(cli, 3, "drain", "--from", old.address, "work")
    assert f"--from {old.address}: " in said
    assert said.endswith("kestrel-cli: work: 2 items moved, of which the last one may be at the source as well\n")
    assert take_all(server, b"work") == [b"1", b"2"]


def test_lost_target_leaves_the_item_at_the_source(cli: Cli, source: OtherServer) -> None:
    source.fill(b"work", b"1", b"2", b"3")
    puts = [(b"set work 0 0 1\r\n%b\r\n" % data, b"STORED\r\n") for data in (b"1", b"2")]
    with scripted(talk((b"dump_stats\r\n", b"END\r\n"), puts[0], (puts[1][0], b""))) as new:
        said = error_of(cli, 3, "--server", new.address, "drain", "--from", source.address, "work")
    assert said.endswith(
        "kestrel-cli: work: 1 item moved; the next one is at the source, and may be at the target as well\n"
    )
    eventually(lambda: source.items(b"work") == [b"2", b"3"], "what was open is back")


@pytest.mark.parametrize("answer", [b"ERROR \r\n", b"ERROR Unknown command\r\n", b"SERVER_ERROR\r\n", b"what\r\n"])
def test_refusal_by_the_source_is_quoted(cli: Cli, server: Server, answer: bytes) -> None:
    exchanges = [(b"stats\r\n", STATS), (b"get work/open\r\n", answer)]
    said = error_of(with_scripted, 3, cli, exchanges, "drain", "--from", "SERVER", "work")
    assert re.match("kestrel-cli: --from SERVER(:| refused or failed:) ", said)
    assert said.endswith("work: 0 items moved; all others are at the source\n")


def test_missing_queue_is_reported_and_not_created(cli: Cli, server: Server, source: OtherServer) -> None:
    source.fill(b"work", b"a")
    status, out, said = cli("drain", "--from", source.address, "nothing", "work")
    assert (status, out) == (1, b"work: 1 item moved\n")
    assert said == f"kestrel-cli: there is no queue nothing at {source.address}\n"
    assert list(source.queues) == [b"work"]


def test_cursor_missing_in_the_stats_is_drained_by_name(cli: Cli, server: Server, siberite: Siberite) -> None:
    exchanges = [
        (b"stats\r\n", b"STAT version siberite-0.6.4\r\n" + STATS),
        (b"get work.audit/open\r\n", b"END\r\n"),
        (b"stats\r\n", STATS),
    ]
    assert with_scripted(cli, exchanges, "drain", "--from", "SERVER", "--as", "audit", "work.audit")[0] == 0
    assert cli("drain", "--from", siberite.address, "nothing.audit")[0] == 1


def test_unreachable_source_is_named(cli: Cli, server: Server) -> None:
    said = error_of(cli, 3, "drain", "--from", "127.0.0.1:1", "work")
    assert said == (
        "kestrel-cli: cannot connect to 127.0.0.1:1: Connection refused; is the server running? name another with"
        " --from\n"
    )
    said = error_of(cli, 3, "drain", "--from", "no-such-host.invalid", "work")
    assert said.endswith("; name another with --from\n")
    assert "[Errno" not in said


# Kill and Ctrl-C.


class Gate:
    """Stops a source at one of its gets until the test opens the gate."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, gets: int) -> None:
        """Wait at the chosen get."""
        if gets == self._at:
            self.reached.set()
            assert self.opened.wait(PATIENCE_S)


def drain_up_to(gate: Gate, source: OtherServer, server: Server, stack: ExitStack) -> Child[bytes]:
    """Start a drain, and wait until it reaches the gate of its source. Both end with the stack."""
    stack.enter_context(serving(source))
    stack.callback(gate.opened.set)
    process = Child(
        command("cli", "drain", "--from", source.address, "work"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(server),
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert gate.reached.wait(PATIENCE_S)
    return process


@pytest.mark.parametrize("kind", [Darner, Siberite])
@pytest.mark.parametrize("at", [1, 2, 50, 300, 301])
def test_killed_drain_loses_nothing(cli: Cli, server: Server, kind: type[Darner | Siberite], at: int) -> None:
    gate = Gate(at)
    source = kind(gate)
    source.fill(b"work", *NUMBERS)
    with ExitStack() as stack:
        process = drain_up_to(gate, source, server, stack)
        process.kill()
        process.wait(PATIENCE_S)
        gate.opened.set()
        eventually(lambda: source.connections == 0, "what was open is back")
        status, _, said = cli("drain", "--from", source.address, "work")
        assert (status, said) == (0, "")
    moved = take_all(server, b"work")
    assert list(dict.fromkeys(moved)) == NUMBERS
    assert len(moved) <= len(NUMBERS) + 1


def test_ctrl_c_ends_the_drain_and_it_can_continue(cli: Cli, server: Server) -> None:
    gate = Gate(50)
    source = Darner(gate)
    source.fill(b"work", *NUMBERS)
    with ExitStack() as stack:
        process = drain_up_to(gate, source, server, stack)
        process.send_signal(signal.SIGINT)
        gate.opened.set()
        out, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert said == b"kestrel-cli: interrupted; run this again to go on\n"
        assert out.endswith(b" items moved\n")
        assert cli("drain", "--from", source.address, "work")[0] == 0
    assert take_all(server, b"work") == NUMBERS


# Invalid arguments.


def test_server_is_not_drained_into_the_same_queue(cli: Cli, server: Server) -> None:
    with server.connect() as client:
        client.put(b"work", b"a")
    drain = "drain", "--from", f"localhost:{server.port}"
    assert "--from is the server that it would be put to" in error_of(cli, 1, *drain, "work")
    status, out, _ = cli(*drain, "--as", "other", "work")
    assert (status, out) == (0, b"work: 1 item moved to other\n")
    assert take_all(server, b"other") == [b"a"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from", "h"),
        ("--from", "h", "--all", "work"),
        ("--from", "h", "--all", "--as", "b"),
        ("--from", "h", "--as", "b", "work", "other"),
        ("--from", "h:x", "work"),
        ("--from", "h", "a b"),
        ("--from", "h", "--json", "--quiet", "work"),
        ("work",),
        ("--protocol", "thrift", "--from", "h", "work"),
    ],
)
def test_invalid_command_line_has_status_2(cli: Cli, server: Server, arguments: tuple[str, ...]) -> None:
    said = error_of(cli, 2, "drain", *arguments)
    assert said
