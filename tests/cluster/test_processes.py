"""Real servers in the sets of a real ZooKeeper."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.client.certificates import Authority
from tests.cluster.servers import await_members, config, members, set_status
from tests.cluster.zookeeper import ZooKeeper, over_tls, running_zookeeper
from tests.server.running import ANY_PORT, Processes, Server, eventually, own_port

SERVED = 'queuePath = "queues"\nstatusFile = "status"\n[admin]\nhttpPort = false\n'


def logs(server: Server, text: str) -> None:
    eventually(lambda: text in server.logged(), f"the log says {text}")


def test_server_joins_when_it_serves_with_all_its_endpoints(
    processes: Processes, zookeeper: ZooKeeper, prefix: str
) -> None:
    server = processes.serve(SERVED + config(zookeeper, prefix), "--thrift", ANY_PORT, "--text", ANY_PORT)
    await_members(zookeeper, prefix, {server.port: "Up"})
    [node] = zookeeper.client.get_children(f"{prefix}/write")
    said = json.loads(zookeeper.client.get(f"{prefix}/write/{node}")[0])
    assert node == "member_0000000000"
    assert said["serviceEndpoint"] == said["additionalEndpoints"]["memcache"] == {
        "host": "127.0.0.1",
        "port": server.port,
    }
    assert sorted(said["additionalEndpoints"]) == ["memcache", "text", "thrift"]
    logs(server, f"In zk://127.0.0.1:{zookeeper.port}{prefix} this server is now in read and write")


def test_server_leaves_by_its_status_and_when_it_stops(processes: Processes, zookeeper: ZooKeeper, prefix: str) -> None:
    server = processes.serve(SERVED + config(zookeeper, prefix, session_timeout="10s"))
    for status in ("ReadOnly", "Quiescent", "WriteAvoid", "Up"):
        set_status(server, status)
        await_members(zookeeper, prefix, {server.port: status})
    server.stop()
    assert members(zookeeper.client, prefix) == {"read": [], "write": []}  # long before the session times out


def test_killed_server_is_not_listed_twice(
    processes: Processes, zookeeper: ZooKeeper, prefix: str
) -> None:
    with own_port() as port:
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        given = SERVED + config(zookeeper, prefix, session_timeout="60s")
        server = processes.serve(given, endpoint=endpoint)
        await_members(zookeeper, prefix, {port: "Up"})
        server.kill()
        assert members(zookeeper.client, prefix) == {"read": [port], "write": [port]}
        server = processes.serve('defaultStatus = "ReadOnly"\n' + given, endpoint=endpoint)
        await_members(zookeeper, prefix, {port: "ReadOnly"})


def test_sets_are_left_before_commands_are_refused(
    processes: Processes, zookeeper: ZooKeeper, prefix: str
) -> None:
    server = processes.serve('statusChangeGracePeriod = "1h"\n' + SERVED + config(zookeeper, prefix))
    await_members(zookeeper, prefix, {server.port: "Up"})
    set_status(server, "Quiescent")
    await_members(zookeeper, prefix, {server.port: "Quiescent"})
    with server.connect() as client:
        client.put(b"work", b"still taken")


def test_server_without_zookeeper_serves_and_joins_later(
    processes: Processes, tmp_path: Path
) -> None:
    with own_port() as port:
        zookeeper = ZooKeeper(tmp_path / "zookeeper", port)
        try:
            server = processes.serve(SERVED + config(zookeeper, "/k"))
            with server.connect() as client:
                client.put(b"work", b"hello")
                assert client.get(b"work") == b"hello"
            logs(server, "ZooKeeper cannot be reached, and")
            assert "Connection refused" in server.logged()
            zookeeper.start()
            await_members(zookeeper, "/k", {server.port: "Up"})
            zookeeper.kill()
            logs(server, "ZooKeeper does not answer any more")
            with server.connect() as client:
                client.put(b"work", b"hello")
            server.stop()
        finally:
            zookeeper.close()


def test_hanging_zookeeper_does_not_delay_a_stop(processes: Processes, tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper:
        server = processes.serve(SERVED + config(zookeeper, "/k", session_timeout="60s"))
        await_members(zookeeper, "/k", {server.port: "Up"})
        zookeeper.freeze()
        try:
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < 30  # the session has 60
        finally:
            zookeeper.thaw()


def test_server_joins_again_after_zookeeper_lost_its_data(processes: Processes, tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper:
        server = processes.serve(SERVED + config(zookeeper, "/k", session_timeout="1s"))
        await_members(zookeeper, "/k", {server.port: "Up"})
        zookeeper.kill()
        zookeeper.forget()
        zookeeper.start()
        await_members(zookeeper, "/k", {server.port: "Up"})


def test_tls_client_checks_the_name_of_the_host(processes: Processes, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with own_port() as plain, own_port() as port:  # one for the test, and one for servers
        zookeeper = ZooKeeper(tmp_path / "zookeeper", plain, over_tls(authority, port))
        try:
            zookeeper.start()
            # An attempt to connect has a third of the session timeout, and a machine may be busy.
            given = config(zookeeper, "/k", f'tls = true\ncaFile = "{authority.ca_file}"', session_timeout="30s")
            given = SERVED + given.replace(f"port = {plain}", f"port = {port}")
            server = processes.serve(given)
            await_members(zookeeper, "/k", {server.port: "Up"})
            server.stop()
            server = processes.serve(given + 'serverName = "zookeeper.example"\n')
            logs(server, "its certificate is not accepted: Hostname mismatch")
            assert members(zookeeper.client, "/k") == {"read": [], "write": []}
        finally:
            zookeeper.close()


def test_initializers_replace_the_built_in_ones(processes: Processes, zookeeper: ZooKeeper, prefix: str) -> None:
    processes.write(
        "ours.py",
        """
from pathlib import Path

from kazoo.client import KazooClient


def client(settings):
    return KazooClient(f"{settings.host}:{settings.port}", timeout=1.0)


class Set:
    def __init__(self, settings, client, path, member):
        self.client, self.path, self.member = client, path, member

    def join(self):
        self.client.ensure_path(f"{self.path}/{self.member.service.port}")

    def leave(self):
        if self.client.exists(f"{self.path}/{self.member.service.port}"):
            self.client.delete(f"{self.path}/{self.member.service.port}")
""",
    )
    names = 'clientInitializer = "ours.client"\nserverSetInitializer = "ours.Set"\n'
    server = processes.serve(SERVED + config(zookeeper, prefix, names))
    port = str(server.port)

    def there() -> list[list[str]]:
        both = [f"{prefix}/{name}" for name in ("read", "write")]
        return [zookeeper.client.get_children(path) for path in both if zookeeper.client.exists(path)]

    eventually(lambda: there() == [[port], [port]], "it is in both")
    set_status(server, "ReadOnly")
    eventually(lambda: there() == [[port], []], "it is in the one for gets")
    server.stop()
    assert there() == [[], []]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "client = lambda settings: None",
            "the object that clientInitializer in [zookeeper] returns has no add_listener and no ",
        ),
        ("def client(settings): raise ValueError('not today')", "cannot create ZooKeeper's client: not today"),
        (
            "Set = lambda *_: None",
            "the object that serverSetInitializer in [zookeeper] returns has no join and no leave",
        ),
    ],
)
def test_invalid_initializer_is_refused_at_the_start(
    processes: Processes, zookeeper: ZooKeeper, prefix: str, code: str, said: str
) -> None:
    processes.write("ours.py", code)
    wanted = 'serverSetInitializer = "ours.Set"' if "Set" in code else 'clientInitializer = "ours.client"'
    server = processes.start(SERVED + config(zookeeper, prefix, wanted))
    assert server.exit_status() == 78
    assert said in server.stderr()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("", "their own machine: listen on another address, or set advertiseAddress in [zookeeper]"),
        ('clientInitializer = "no.such"', "cannot import no.such, named in [zookeeper]: No module named 'no'"),
        ('serverSetInitializer = "os.sep"', "os.sep, named in [zookeeper], is not callable"),
        ('sessionTimeout = "1ms"', "sessionTimeout in [zookeeper] must be from 100ms to 1d"),
        ('sessionTimeout = "25d"', "sessionTimeout in [zookeeper] must be from 100ms to 1d"),
        ('acl = "everyone-read-creator-all"', "needs credentials, which are the creator"),
        ('caFile = "ca.pem"', "have no effect without tls = true"),
        ('tls = true\ncaFile = "nowhere.pem"', "nowhere.pem, named in [zookeeper]: "),
        ('tls = true\nkeyFile = "key.pem"', "keyFile in [zookeeper] has no effect without certFile"),
    ],
)
def test_server_that_cannot_be_announced_does_not_start(processes: Processes, wrong: str, said: str) -> None:
    table = f'[zookeeper]\nhost = "zoo"\npathPrefix = "/k"\n{wrong}\n'
    server = processes.start(SERVED + table)
    assert server.exit_status() == 78
    assert said in server.stderr()
