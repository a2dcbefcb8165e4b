"""kestrel-cli with a server set in a real ZooKeeper, and real servers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.child import Child
from tests.cluster.sets import Sets, items
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import PATIENCE_S, Server, eventually, own_port
from tests.tools.tool_processes import ENVIRONMENT, command


def begin(sets: Sets | str, *arguments: str) -> Child[bytes]:
    pipe = subprocess.PIPE
    environment = ENVIRONMENT | {"KESTREL_SERVERS": sets if isinstance(sets, str) else sets.uri}
    return Child(command("cli", *arguments), stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def run(sets: Sets | str, *arguments: str, given: bytes = b"") -> tuple[int, str, str]:
    """Return the exit status, standard output and standard error."""
    with begin(sets, *arguments) as process:
        out, err = process.communicate(given)
    return process.returncode, out.decode(), err.decode()


def put(server: Server, *data: bytes) -> None:
    with server.connect() as client:
        client.put(b"work", *data)


def end(process: Child[bytes]) -> tuple[int, str]:
    """Press Ctrl-C. Return the exit status and standard error."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    return process.returncode, err.decode()


def connections(server: Server) -> int:
    with server.connect() as client:
        return int(client.stats()["curr_connections"])


# Members of the sets.


def test_members_are_shown_as_table_and_as_json(sets: Sets, servers: list[Server]) -> None:
    one, two = servers
    sets.join(one)
    sets.join(two, "read")
    sets.put("write", b'{"serviceEndpoint": {"host": "mq3", "port": 3}}')
    sets.put("read", b"garbage")
    status, shown, said = run(sets, "servers")
    assert (status, shown.splitlines()[0].split()) == (0, ["server", "memcache", "thrift", "read", "write"])
    wanted = [
        [*[f"127.0.0.1:{server.port}"] * 2, f"127.0.0.1:{server.port_of('thrift')}", "yes", is_written]
        for server, is_written in ((one, "yes"), (two, "no"))
    ]
    assert [line.split() for line in shown.splitlines()[1:]] == [*wanted, ["mq3:3", "-", "-", "no", "yes"]]
    assert "garbage" not in said
    status, shown, _ = run(sets, "--server", sets.uri, "servers", "--json")
    first = json.loads(shown.splitlines()[0])
    assert first == {
        "service": f"127.0.0.1:{one.port}",
        "endpoints": {"memcache": f"127.0.0.1:{one.port}", "thrift": f"127.0.0.1:{one.port_of('thrift')}"},
        "read": True,
        "write": True,
    }


def test_empty_sets_are_reported_with_the_way_out(sets: Sets) -> None:
    status, shown, said = run(sets, "servers")
    assert (status, shown, said) == (1, "", f"kestrel-cli: no server is in {sets.uri}\n")
    for arguments, which in (
        (["put", "work", "a"], "the write set"),
        (["get", "work"], "the read set"),
        (["peek", "work"], "the read set"),
        (["status"], "the sets"),
        (["flush", "--yes", "work"], "the sets"),
        (["--protocol", "thrift", "delete", "work"], "the sets"),
    ):
        status, shown, said = run(sets, *arguments)
        protocol = "thrift" if "thrift" in arguments else "memcache"
        assert (status, shown) == (3, "")
        assert f"no server that speaks {protocol} is in {which} of {sets.uri}; is one running that joins it?" in said


def test_unreachable_zookeeper_is_reported_with_the_way_out() -> None:
    with own_port() as port:
        for arguments in (["servers"], ["get", "--wait", "1h", "work"], ["put", "work"], ["status"]):
            status, shown, said = run(f"zk://127.0.0.1:{port}/k", "--timeout", "300ms", *arguments, given=b"a\nb\n")
            assert (status, shown) == (3, "")
            assert "the members of the server set are not known: zk://127.0.0.1:" in said
            assert f":{port}/k: Connection refused; is ZooKeeper running? give it more time with --timeout" in said
            assert "Traceback" not in said
            if arguments[0] == "put":
                assert said.endswith("0 items put; not put: items 1 and all that follow\n")


def test_stats_wait_for_zookeeper_and_then_show_the_servers(
    tmp_path: Path, servers: list[Server]
) -> None:
    with own_port() as port, closing(ZooKeeper(tmp_path, port)) as zookeeper:
        uri = f"zk://127.0.0.1:{port}/k"
        with begin(uri, "--timeout", "100ms", "stats", "--watch", "50ms") as watching:
            assert b"the members of the server set are not known" in watching.read_line(watching.stderr)
            zookeeper.start()
            sets = Sets(zookeeper, "/k")
            sets.join(servers[0])
            while not (line := watching.read_line()).strip():
                pass
            assert line.startswith(b"127.0.0.1:%d: kestrel " % servers[0].port)
            sets.join(servers[1])
            while not watching.read_line().startswith(b"127.0.0.1:%d: kestrel " % servers[1].port):
                pass
            assert end(watching)[0] == 0


# The command line.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server", "zk://zk1/k", "--server", "mq1", "status"], "must be the only server given"),
        (["--server", "mq1,zk://zk1/k", "status"], "must be the only server given"),
        (["--server", "zk://me:secret@zk1,zk2", "status"], "has no path of the server sets"),
        (["--server", "zks://zk1/k?ca=/no/such.pem", "status"], "/no/such.pem: No such file or directory; is it PEM?"),
        (["--server", "mq1", "servers"], "these are servers, and no server set: name one with --server zk://HOST/PATH"),
        (["--server", "zk://zk1/k", "top"], "top asks the admin port"),
    ],
)
def test_invalid_arguments_are_reported(arguments: list[str], said: str) -> None:
    status, shown, err = run("localhost", *arguments)
    assert (status, shown) == (2, "") and said in err and "secret" not in err and "Traceback" not in err


def test_environment_server_set_allows_commas_and_spaces() -> None:
    with own_port() as port:
        _, _, said = run(f" zk://127.0.0.1:{port},localhost:{port}/k\n", "--timeout", "100ms", "status")
        assert f"zk://127.0.0.1:{port},localhost:{port}/k: Connection refused" in said
        _, _, said = run(f"zk://127.0.0.1:{port}/k mq1", "status")
        assert "must be the only server given" in said


# Long commands.


def test_monitor_follows_the_set_and_removes_servers_that_left(sets: Sets, servers: list[Server]) -> None:
    one, two = servers
    sets.join(one)
    put(one, b"a")
    with begin(sets, "monitor", "work") as monitor:
        assert monitor.read_line() == b"a\n"
        put(two, b"b")
        sets.join(two)
        assert monitor.read_line() == b"b\n"
        sets.leave(one)
        eventually(lambda: connections(one) == 1, "its connection has ended")
        put(one, b"c")
        put(two, b"d")
        assert monitor.read_line() == b"d\n"
        assert end(monitor) == (0, "")
    assert items(one) == 1


def test_load_from_standard_input_follows_the_set(sets: Sets, servers: list[Server]) -> None:
    one, two = servers
    sets.join(one)
    with begin(sets, "put", "work") as load:
        assert load.stdin is not None

        def give_one() -> bool:
            assert load.stdin is not None
            load.stdin.write(b"a\n")
            load.stdin.flush()
            return items(two) > 0

        load.stdin.write(b"a\n")
        load.stdin.flush()
        eventually(lambda: items(one) == 1, "the first has gone to the first server")
        sets.join(two)
        sets.leave(one)
        eventually(give_one, "items go to the second")
        out, err = load.communicate()
    assert (load.returncode, err) == (0, b"")
    assert int(out.split()[0]) == items(one) + items(two)


def test_ctrl_c_ends_a_wait_for_zookeeper() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_S)
        port = silent.getsockname()[1]
        with begin(f"zk://127.0.0.1:{port}/k", "--timeout", "1h", "get", "work") as get:
            for _ in range(2):  # one attempt to connect has failed by then, and the command only waits
                silent.accept()[0].close()
            status, said = end(get)
            assert (status, said) == (130, "kestrel-cli: interrupted\n")
