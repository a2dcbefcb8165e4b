"""kestrel-cli as a process: broken pipes, servers that stop, Ctrl-C, terminals."""

from __future__ import annotations

import fcntl
import signal
import socket
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from kestrel.tools.progress import LARGE_LOAD_BYTES
from kestrel.tools.tool_runner import Clock
from tests.child import Child
from tests.client.first_choice import FirstOfAll
from tests.client.scripted import reset, scripted, talk
from tests.memcache_text import STORED, set_
from tests.server.running import PATIENCE_S, Processes, Server, eventually, own_port
from tests.tools.conftest import CONFIG, Cli, error_of, put, with_scripted
from tests.tools.tool_processes import command, environment, on_a_terminal, run, run_command

A_B_C = [set_(b"work", data) for data in (b"a", b"b", b"c")]
PUT_THREE = ("put", "work", "a", "b", "c")
LARGE = 200_000
"""More bytes than a pipe and its reader hold."""


def wait_for_items(server: Server, number: int) -> None:
    """Wait for a number of items in the queue."""
    with server.connect() as client:
        eventually(lambda: int(client.stats().get("queue_work_items", "0")) == number, f"{number} items are there")


def begin(server: Server, *arguments: str) -> Child[bytes]:
    pipe = subprocess.PIPE
    return Child(command("cli", *arguments), stdin=pipe, stdout=pipe, stderr=pipe, env=environment(server))


def give(process: Child[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


# Pipes.


@pytest.mark.parametrize("max_open_reads", [1, 100])
def test_broken_pipe_loses_only_the_items_written_to_it(processes: Processes, max_open_reads: int) -> None:
    server = processes.serve(f'queuePath = "queues"\nmaxOpenTransactions = {max_open_reads}\n')
    put(server, *(data * LARGE for data in (b"a", b"b", b"c")))
    get = begin(server, "get", "--all", "work")
    first = subprocess.run(["head", "-n", "1"], stdin=get.stdout, capture_output=True, timeout=PATIENCE_S)
    assert get.stdout is not None
    get.stdout.close()  # only head reads from it now
    assert get.communicate()[1] == b""
    assert (get.returncode, first.stdout) == (0, b"a" * LARGE + b"\n")
    with server.connect() as client:
        assert [client.get(b"work"), client.get(b"work"), client.get(b"work")] == [b"b" * LARGE, b"c" * LARGE, None]


@pytest.mark.parametrize("arguments", [("get", "work"), ("get", "--all", "work"), ("monitor", "-n", "2", "work")])
def test_items_that_cannot_be_written_stay_in_the_queue(server: Server, arguments: tuple[str, ...]) -> None:
    put(server, b"a", b"b", b"c")
    with open("/dev/full", "wb") as full:
        done = run("cli", *arguments, stdout=full, env=environment(server))
    assert done.returncode == 1
    assert b"standard output cannot be written: No space left on device" in done.stderr
    wait_for_items(server, 3)
    with server.connect() as client:
        assert [client.get(b"work") for _ in range(3)] == [b"a", b"b", b"c"]


def test_slow_input_is_put_as_it_arrives(server: Server) -> None:
    with begin(server, "put", "work") as process:
        for number in range(1, 4):
            give(process, b"a line\n")
            wait_for_items(server, number)
        out, said = process.communicate(b"without an end")
    assert (process.returncode, said) == (0, b"")
    assert out.startswith(b"4 items put in ")


# Servers that stop.


def test_failed_load_reports_which_items_were_put(cli: Cli) -> None:
    assert error_of(with_scripted, 3, cli, [(b"".join(A_B_C), STORED * 2)], *PUT_THREE) == (
        "kestrel-cli: SERVER: the server closed the connection before it answered; is the server still running? does it"
        " speak memcache there, without TLS?\n"
        "kestrel-cli: 2 items put; perhaps put: item 3\n"
    )
    with scripted(reset((b"".join(A_B_C), STORED))) as server:
        said = error_of(cli, 3, "--server", server.address, "put", "work", stdin=b"a\nb\nc\n")
    assert said.endswith("\nkestrel-cli: 1 item put; perhaps put: items 2 to 3; not put: items 4 and all that follow\n")


def test_items_sent_after_a_refusal_were_not_put(cli: Cli) -> None:
    refusal = STORED + b"SERVER_ERROR the server is ReadOnly\r\n"
    assert error_of(with_scripted, 3, cli, [(b"".join(A_B_C), refusal)], *PUT_THREE) == (
        "kestrel-cli: SERVER refused or failed: the server is ReadOnly\n"
        "kestrel-cli: 1 item put; not put: items 2 to 3\n"
    )


def test_uncertain_load_ends_despite_another_server(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kestrel.client.blocking.Random", FirstOfAll)
    with scripted(talk((b"".join(A_B_C), b"SERVER_ERROR disk full\r\n" + STORED))) as one, scripted() as two:
        said = error_of(cli, 3, "--server", one.address, "--server", two.address, *PUT_THREE)
    assert said.endswith("\nkestrel-cli: 1 item put; perhaps put: item 3; not put: item 1\n")


PROTOCOLS = pytest.mark.parametrize("protocol", ["memcache", "thrift"])


def begin_with(server: Server, protocol: str, *arguments: str) -> Child[bytes]:
    """Run kestrel-cli with a protocol until it waits."""
    address = f"127.0.0.1:{server.port_of(protocol)}"
    process = begin(server, "--protocol", protocol, "--server", address, *arguments)
    wait_for_a_waiter(server)
    return process


@PROTOCOLS
@pytest.mark.parametrize("arguments", [("monitor", "work"), ("get", "--wait", "1h", "-n", "2", "work")])
def test_waiting_client_ends_when_its_server_stops(
    processes: Processes, protocol: str, arguments: tuple[str, ...]
) -> None:
    with own_port() as port:
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        server = processes.serve(CONFIG, endpoint=endpoint)
        with begin_with(server, protocol, *arguments) as process:
            put(server, b"a")
            assert process.read_line() == b"a\n"
            wait_for_a_waiter(server)
            server.stop()
            processes.serve(CONFIG, endpoint=endpoint)
            out, said = process.communicate()
    assert (process.returncode, out) == (3, b"")
    assert said.endswith(b"\nkestrel-cli: 1 item taken\n")


@PROTOCOLS
def test_waiting_get_without_items_ends_when_its_server_stops(processes: Processes, protocol: str) -> None:
    server = processes.serve(CONFIG)
    with begin_with(server, protocol, "get", "--wait", "1h", "work") as process:
        server.stop()
        out, said = process.communicate()
    assert (process.returncode, out) == (3, b"")
    assert b"is the server still running?" in said


NO_ITEMS = (b"dump_stats work\r\n", b"queue 'work' {\r\n  items=0\r\n}\r\nEND\r\n")


def test_server_that_stops_between_requests_ends_the_monitor(cli: Cli) -> None:
    waited = (b"get work/t=60000/open\r\n", b"END\r\n"), (b"version\r\n", b"VERSION 1\r\n")
    is_gone = threading.Event()

    def go(connection: socket.socket) -> None:
        talk(NO_ITEMS, *waited)(connection)
        connection.shutdown(socket.SHUT_RDWR)
        is_gone.set()

    def pause(seconds: float) -> None:
        assert is_gone.wait(PATIENCE_S)

    with scripted(go) as server:
        clock = Clock(lambda: 0.0, pause)
        said = error_of(cli, 3, "--server", server.address, "monitor", "work", clock=clock)
    assert said.startswith(f"kestrel-cli: {server.address}: the server hung up; ")


def test_unconfirmed_item_is_reported(cli: Cli) -> None:
    taken = (b"get work/open\r\n", b"VALUE work 0 1\r\na\r\nEND\r\n")
    status, out, said = with_scripted(cli, [taken, (b"confirm work 1\r\n", b"")], "get", "work")
    assert (status, out) == (3, b"a\n")
    assert said.endswith("\nkestrel-cli: 1 item taken, of which the last 1 may come again\n")


def look(items: int) -> tuple[bytes, bytes]:
    """Return the request for the number of items, and its reply."""
    return b"dump_stats work\r\n", b"queue 'work' {\r\n  items=%d\r\n}\r\nEND\r\n" % items


LOOK = look(2)
MONITOR = b"monitor work 1 2\r\n"
ITEM = b"VALUE work 0 1\r\n%b\r\nEND\r\n"


@pytest.mark.parametrize(
    ("exchanges", "out", "account"),
    [
        ([(MONITOR, ITEM % b"a")], b"a\n", "1 item taken, of which the last 1 may come again"),
        (
            [(MONITOR, ITEM % b"a" + ITEM % b"b" + b"END\r\n"), (b"confirm work 2\r\n", b"ERROR\r\n")],
            b"a\nb\n",
            "2 items taken, of which the last 2 may come again",
        ),
    ],
)
def test_unconfirmed_items_of_a_batch_are_reported(
    cli: Cli, exchanges: list[tuple[bytes, bytes]], out: bytes, account: str
) -> None:
    status, written, said = with_scripted(cli, [LOOK, *exchanges], "get", "--all", "work")
    assert (status, written) == (3, out)
    assert said.endswith(f"\nkestrel-cli: {account}\n")


@pytest.mark.parametrize(("items", "batch"), [(2, 2), (250, 100)])
def test_get_all_opens_up_to_100_items_then_single_ones(cli: Cli, items: int, batch: int) -> None:
    monitor, get = (b"monitor work 1 %d\r\n" % batch, b"END\r\n"), (b"get work/open\r\n", b"END\r\n")
    assert with_scripted(cli, [look(items), monitor, get], "get", "--all", "work") == (1, b"", "")


# Waits.

IS_THERE = (b"version\r\n", b"VERSION 1.0\r\n")
"""The check after a wait without an item, which also ends when the server stops."""


def test_each_missing_item_is_waited_for(cli: Cli) -> None:
    wait = b"get work/t=10000/open\r\n"
    there_is_one = (wait, ITEM % b"a"), (b"confirm work 1\r\n", b"END\r\n")
    exchanges = [look(0), *there_is_one, look(0), (wait, b"END\r\n"), IS_THERE]
    assert with_scripted(cli, exchanges, "get", "--wait", "10s", "-n", "3", "work") == (0, b"a\n", "")


def test_monitor_waits_only_until_its_end(cli: Cli) -> None:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += 60  # the wait at the server and this pause

    waits = [look(0), (b"get work/t=60000/open\r\n", b"END\r\n"), IS_THERE]
    waits += [look(0), (b"get work/t=30000/open\r\n", b"END\r\n"), IS_THERE]
    clock = Clock(lambda: now[0], pause)
    assert with_scripted(cli, waits, "monitor", "--for", "90s", "work", clock=clock) == (0, b"", "")


# Several servers.


def test_items_are_taken_from_all_servers(server: Server, processes: Processes, cli: Cli) -> None:
    two = processes.serve(CONFIG)
    names = ["--server", f"127.0.0.1:{server.port}", "--server", f"127.0.0.1:{two.port}"]
    for has_more, has_one in ((server, two), (two, server)):
        put(has_more, b"a", b"b")
        put(has_one, b"c")
        status, out, said = cli(*names, "get", "--all", "work")
        assert (status, sorted(out.split()), said) == (0, [b"a", b"b", b"c"], "")


# Ctrl-C.


def bytes_to_be_read(process: Child[bytes]) -> int:
    """Return the number of bytes of its input that a process has not read yet."""
    assert process.stdin is not None
    return int.from_bytes(fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_ctrl_c_in_a_load_reports_the_items_put(server: Server) -> None:
    with begin(server, "put", "work") as process:
        give(process, b"a\nb\nc\n")
        wait_for_items(server, 3)
        give(process, b"d")
        eventually(lambda: bytes_to_be_read(process) == 0, "it reads on, and so has the answers to the first three")
        process.send_signal(signal.SIGINT)
        out, said = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert said == b"kestrel-cli: interrupted; 3 items put; not put: items 4 and all that follow\n"


def test_ctrl_c_ends_a_monitor(server: Server) -> None:
    with begin(server, "monitor", "work") as process:
        for data in (b"a", b"b"):
            put(server, data)
            assert process.read_line() == data + b"\n"
        wait_for_a_waiter(server)
        process.send_signal(signal.SIGINT)
        assert process.communicate() == (b"", b"")
    assert process.returncode == 0
    wait_for_items(server, 0)


def test_ctrl_c_in_a_waiting_get_takes_nothing(server: Server) -> None:
    with begin(server, "get", "--wait", "1h", "work") as process:
        wait_for_a_waiter(server)
        process.send_signal(signal.SIGINT)
        assert process.communicate() == (b"", b"kestrel-cli: interrupted\n")
    assert process.returncode == 130
    put(server, b"a")
    wait_for_items(server, 1)


def wait_for_a_waiter(server: Server) -> None:
    """Wait for a waiter of the queue."""
    with server.connect() as client:
        eventually(lambda: client.stats().get("queue_work_waiters") == "1", "it waits")


# Terminals.


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Return a file of large lines that shows a progress bar."""
    path = tmp_path / "lines"
    path.write_bytes((b"x" * 4095 + b"\n") * (LARGE_LOAD_BYTES // 4096))
    return path


def test_large_load_shows_a_bar_on_the_terminal(server: Server, lines: Path) -> None:
    with lines.open("rb") as stdin:
        status, said = on_a_terminal(command("cli", "put", "work"), stdin.fileno(), env=environment(server))
    assert status == 0
    assert said.startswith(b"\r[=>")
    assert b" of 4.2 MB " in said
    assert said.endswith(b"\r\x1b[K")


def test_quiet_load_shows_no_bar(server: Server, lines: Path) -> None:
    with lines.open("rb") as stdin:
        arguments = command("cli", "put", "-q", "work")
        assert on_a_terminal(arguments, stdin.fileno(), env=environment(server)) == (0, b"")


def test_items_can_be_typed(server: Server) -> None:
    put_all = command("cli", "put", "work")
    status, said = on_a_terminal(put_all, env=environment(server), is_for="all", typed=b"a\nb\n\4")
    assert status == 0
    assert b"kestrel-cli: reading from the terminal, one item per line; press Ctrl-D to end\r\n" in said
    assert b"2 items put in " in said


def test_items_on_a_terminal_are_escaped_except_with_raw(server: Server) -> None:
    put(server, b"\x1b[2J\xff\n")
    peek = command("cli", "peek", "work")
    assert on_a_terminal(peek, env=environment(server), is_for="stdout") == (0, b"\\x1b[2J\\xff\\n\r\n")
    assert on_a_terminal([*peek, "--raw"], env=environment(server), is_for="stdout") == (0, b"\x1b[2J\xff\r\n\r\n")


@pytest.mark.parametrize("what", ["get", "peek"])
def test_missing_item_is_reported_on_a_terminal(server: Server, what: str) -> None:
    told = on_a_terminal(command("cli", what, "work"), env=environment(server), is_for="all")
    assert told == (1, b"kestrel-cli: there is no item in the queue work\r\n")
    assert on_a_terminal(command("cli", what, "work"), env=environment(server), is_for="stderr") == (1, b"")


@pytest.mark.parametrize(
    ("answer", "status", "left"), [(b"y\n", 0, 0), (b"Yes\n", 0, 0), (b"n\n", 1, 1), (b"\n", 1, 1)]
)
@pytest.mark.parametrize("what", ["flush", "delete"])
def test_flush_and_delete_ask_on_a_terminal(server: Server, what: str, answer: bytes, status: int, left: int) -> None:
    put(server, b"a")
    ended, said = on_a_terminal(command("cli", what, "work"), env=environment(server), is_for="all", typed=answer)
    assert ended == status
    question = {"flush": b"drop all items of the queue work,", "delete": b"delete the queue work with all its items,"}
    assert question[what] + b" on 127.0.0.1:%d? [y/N] " % server.port in said
    wait_for_items(server, left)


def test_yes_suppresses_the_question(server: Server) -> None:
    put(server, b"a")
    arguments = command("cli", "delete", "--yes", "work")
    assert on_a_terminal(arguments, env=environment(server), is_for="all") == (0, b"")
    wait_for_items(server, 0)


# Imports.


def test_cli_does_not_import_twisted() -> None:
    check = "import sys, kestrel.tools.cli.command; sys.exit('twisted' in sys.modules)"
    assert run_command([sys.executable, "-c", check]).returncode == 0
