"""The load tools report errors of servers, and failures without a traceback."""

from __future__ import annotations

import signal
import socket
import subprocess

import pytest

from tests.child import Child
from tests.client.certificates import Authority
from tests.load.conftest import CONFIG, at, command, run, told
from tests.load.lossy import Mangled, lossy
from tests.server.running import PATIENCE_S, Processes, Server, eventually, own_port
from tests.tools.tool_processes import ENVIRONMENT, on_a_terminal

ENDLESS = 10_000_000
"""More items than can be put in a test."""


@pytest.mark.parametrize(
    ("tool", "mangled", "what"),
    [
        (["flood"], lambda data, number: [] if number == 5 else [data], "missing"),
        (["flood"], lambda data, number: [data, data] if number == 5 else [data], "doubled"),
        (["packing", "--cycles", "1"], lambda data, number: [data, data] if number == 29 else [data], "doubled"),
        (["packing", "--cycles", "1"], lambda data, number: [data[:-1] + b"?"] if number == 5 else [data], "spoiled"),
    ],
)
def test_lost_doubled_or_changed_item_is_reported(tool: list[str], mangled: Mangled, what: str) -> None:
    with lossy(mangled) as server:
        done = told(run(*tool, "--server", server.address, "--items", 30, "--json"), status=1)
    assert done[what] == 1
    assert f"1 {what}" in done["verdict"]


def test_lost_item_is_reported_by_a_tool_without_gets() -> None:
    with lossy(lambda data, number: [] if number == 5 else [data]) as server:
        assert told(run("put-many", "--server", server.address, "--items", 30, "--json"), status=1)["missing"] == 1


def test_refused_items_are_counted(server: Server) -> None:
    done = told(run("put-many", *at(server), "--queue", "small", "--items", 10, "--json"), status=1)
    assert (done["stored"], done["refused"], done["missing"]) == (3, 7, 0)


def test_reads_that_time_out_are_delivered_again(server: Server) -> None:
    """The timeout is that of the queue."""
    options = ["--queue", "hasty", "--items", 40, "--clients", 2, "--leak", "0.3", "--json"]
    done = told(run("leaky-reader", *at(server), *options))
    assert (done["seen"], done["missing"], done["doubled"]) == (40, 0, 0)
    assert done["came_again"] == done["leaked"] > 0


# Queues of other clients.


def test_queue_with_items_is_refused(server: Server) -> None:
    with server.connect() as client:
        client.put(b"theirs", b"hello")
        done = run("flood", *at(server), "--queue", "theirs", "--items", 10)
        assert (done.returncode, done.stdout) == (1, "")
        assert "the queue theirs is not empty" in done.stderr
        assert "--flush" in done.stderr
        assert client.get(b"theirs") == b"hello"


def test_queue_with_children_is_refused(server: Server) -> None:
    with server.connect() as client:
        client.put(b"parent+child", b"hello")
        assert client.get(b"parent+child") == b"hello"
        done = run("flood", *at(server), "--queue", "parent", "--items", 10)
        assert (done.returncode, done.stdout) == (1, "")
        assert "the queue parent has a child, the queue parent+child, " in done.stderr
        assert client.get(b"parent+child") is None
    assert told(run("flood", *at(server), "--queue", "parent", "--items", 10, "--anyway", "--json"))["seen"] == 10


@pytest.mark.parametrize("protocol", ["memcache", "text", "thrift"])
def test_flush_option_empties_the_queue(server: Server, protocol: str) -> None:
    with server.connect() as client:
        client.put(b"old", b"hello")
        done = told(run("flood", *at(server, protocol), "--queue", "old", "--items", 10, "--flush", "--json"))
        assert (done["seen"], done["foreign"]) == (10, 0)
        assert client.get(b"old") is None


@pytest.mark.parametrize("protocol", ["memcache", "text", "thrift"])
def test_anyway_option_keeps_the_queue_of_others(server: Server, protocol: str) -> None:
    with server.connect() as client:
        client.put(b"load_put_many", b"hello")
        told(run("put-many", *at(server, protocol), "--items", 10, "--anyway", "--json"))
        assert client.get(b"load_put_many") == b"hello"
    told(run("put-many", *at(server), "--items", 10, "--flush", "--json"))  # its own queue is deleted
    with server.connect() as client:
        assert "queue_load_put_many_items" not in client.stats()


@pytest.mark.parametrize("protocol", ["memcache", "text", "thrift"])
def test_anyway_option_reaches_items_after_those_of_others(server: Server, protocol: str) -> None:
    queue = f"crowded_{protocol}"
    with server.connect() as client:
        for _ in range(5):
            client.put(queue.encode(), b"hello")
    load = ["--queue", queue, "--items", 20, "--clients", 2, "--pause", "1ms", "--anyway", "--json"]
    done = told(run("many-clients", *at(server, protocol), *load))
    assert (done["seen"], done["foreign"], done["missing"]) == (20, 5, 0)


def test_anyway_option_counts_items_of_others_separately(server: Server) -> None:
    with server.connect() as client:
        client.put(b"mixed", b"hello")
    done = told(run("flood", *at(server), "--queue", "mixed", "--items", 10, "--anyway", "--json"))
    assert (done["seen"], done["foreign"], done["missing"]) == (10, 1, 0)
    assert "1 item of other clients came too" in done["verdict"]


# Servers.


def test_unreachable_server_is_named() -> None:
    with own_port() as port:
        done = run("flood", "--server", f"127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"kestrel-load: cannot connect to 127.0.0.1:{port}: Connection refused; is the server running? name another"
        " with --server\n"
    )
    done = run("flood", "--server", "no-such-host.invalid")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.endswith("; name another with --server\n")
    assert "DNS" not in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tls"], ": this port does not use TLS: leave out --tls, or name another port with --server\n"),
        (["--protocol", "thrift"], "does it speak thrift there, without TLS?"),
    ],
    ids=["TLS", "thrift"],
)
def test_server_of_another_protocol_is_reported(server: Server, options: list[str], says: str) -> None:
    done = run("flood", *at(server), *options)
    assert (done.returncode, done.stdout) == (3, "")
    assert says in done.stderr
    assert "SSL" not in done.stderr and "[" not in done.stderr


@pytest.mark.parametrize(
    "tool",
    [["many-clients", "--clients", 2, "--pause", "20ms", "--items", 60], ["put-many", "--clients", 1, "--items", 3000]],
)
def test_server_that_closes_idle_connections_is_not_lost(processes: Processes, tool: list[object]) -> None:
    """The idle connection is the one that inspects the queues before and after the run."""
    server = processes.serve('clientTimeout = "500ms"\n' + CONFIG.replace('queues"', f'idle_{tool[0]}"', 1))
    done = told(run(*tool, *at(server), "--json"))
    assert (done["missing"], done["failure"]) == (0, None)


def test_killed_server_ends_the_run_with_its_figures(processes: Processes) -> None:
    server = processes.serve(CONFIG.replace('queues"', 'dying"', 1))
    running = begin("flood", *at(server), "--items", ENDLESS)
    wait_for_load(server, "flood")
    server.kill()
    said, complained = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 3
    assert "items/s" in said
    assert complained.startswith(f"kestrel-load: 127.0.0.1:{server.port}: ")
    assert complained.count("\n") == 1


def test_tls_server_is_verified(processes: Processes) -> None:
    authority = Authority(processes.folder)
    certificate, key = authority.sign("localhost")
    endpoint = f"ssl:0:interface=127.0.0.1:certKey={certificate}:privateKey={key}"
    server = processes.serve(CONFIG.replace('queues"', 'tls"', 1), endpoint=endpoint)
    tls = [*at(server), "--items", 50, "--tls", "--server-name", "localhost", "--json"]
    assert told(run("flood", *tls, "--ca", authority.ca_file))["seen"] == 50
    done = run("flood", *tls)
    assert done.returncode == 3
    assert f"cannot connect to 127.0.0.1:{server.port}: certificate verify failed: " in done.stderr
    assert done.stderr.endswith("; name its CA with --ca, and the name in its certificate with --server-name\n")


# The end.


@pytest.mark.parametrize(
    ("tool", "number"),
    [
        ("flood", signal.SIGINT),
        ("many-clients", signal.SIGINT),
        ("put-many", signal.SIGTERM),
        ("packing", signal.SIGINT),
        ("leaky-reader", signal.SIGINT),
    ],
)
def test_signal_ends_the_run_with_its_figures(server: Server, tool: str, number: signal.Signals) -> None:
    running = begin(tool, *at(server), "--items", 1_000_000)
    wait_for_load(server, tool)
    said = interrupted(running, number)
    assert "items/s" in said
    assert "interrupted: these are the figures so far\n" in said
    with server.connect() as client:
        assert not [name for name in client.stats() if name.startswith("queue_load_")]


def test_interrupted_run_deletes_its_queues() -> None:
    """The deletion takes longer than requests may take to end."""
    with lossy(lambda data, number: [data], delete_s=0.1) as server:
        running = begin("put-many", "--server", server.address, "--queues", 20, "--items", ENDLESS, "--clients", 1)
        eventually(lambda: server.puts > 5, "items are put")
        said = interrupted(running)
    assert said.endswith("interrupted: these are the figures so far\n")
    assert server.deletes == 20


def test_second_ctrl_c_leaves_queues_and_reports_it() -> None:
    with lossy(lambda data, number: [data], delete_s=0.1) as server:
        running = begin("put-many", "--server", server.address, "--queues", 100, "--items", ENDLESS, "--clients", 1)
        eventually(lambda: server.puts > 5, "items are put")
        running.send_signal(signal.SIGINT)
        eventually(lambda: server.deletes > 1, "queues are deleted")
        said = interrupted(running)
    assert said.endswith("; queues of the run are left on the server\n")


@pytest.mark.parametrize("tool", ["flood", "many-clients", "put-many", "packing"])
def test_ctrl_c_ends_the_run_if_the_server_hangs(tool: str) -> None:
    """It does not wait for the timeout of the request."""
    with lossy(lambda data, number: [data]) as server:
        running = begin(tool, "--server", server.address, "--items", 1_000_000, "--timeout", "1h")
        eventually(lambda: server.puts > 5, "items are put")
        server.answers.clear()
        said = interrupted(running)
    assert said.endswith("; queues of the run are left on the server\n")


def test_ctrl_c_ends_the_run_before_the_first_reply() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        running = begin("flood", "--server", f"127.0.0.1:{listener.getsockname()[1]}", "--timeout", "10m")
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE_S)
            assert connection.recv(100) == b"dump_stats load_flood\r\n"
            said = interrupted(running)
    assert said == "interrupted: these are the figures so far\n"


def test_progress_is_shown_on_a_terminal(server: Server) -> None:
    status, said = on_a_terminal(command("flood", *at(server), "--items", 100), env=ENVIRONMENT)
    assert status == 0
    assert said.startswith(b"\rflood: ")
    assert said.endswith(b"\r\x1b[K")


def begin(*arguments: object) -> Child[str]:
    pipe = subprocess.PIPE
    return Child(command(*arguments), stdout=pipe, stderr=pipe, env=ENVIRONMENT, text=True)


def interrupted(running: Child[str], number: signal.Signals = signal.SIGINT) -> str:
    """Send a signal, which must end the run without an error message, and return the output."""
    running.send_signal(number)
    said, complained = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, complained) == (130, "")
    return said


def wait_for_load(server: Server, tool: str) -> None:
    """Wait until some items have been put."""
    name = f"queue_load_{tool.replace('-', '_')}_total_items"
    with server.connect() as client:
        eventually(lambda: int(client.stats().get(name, "0")) > 5, "items are put")
