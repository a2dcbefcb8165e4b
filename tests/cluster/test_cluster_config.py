"""tap-configs/cluster.toml, as it is and with its commented settings. Only folders, ports and hosts are replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel.cluster.member import SERVER_SETS
from tests.client.certificates import Authority
from tests.cluster.servers import await_members, members, set_status
from tests.cluster.zookeeper import ZooKeeper, over_tls
from tests.server.running import ROOT, Processes, Server, eventually, own_port

TEXT = (ROOT / "tap-configs" / "cluster.toml").read_text()
PREFIX = "/services/kestrel"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as processes:
        for folder in ("var/lib/kestrel", "var/log/kestrel"):
            (tmp_path / folder).mkdir(parents=True)
        yield processes


def replaced(text: str, pattern: str, value: str) -> str:
    """Return the text with the only occurrence replaced."""
    changed, times = re.subn(pattern, value, text, flags=re.MULTILINE)
    assert times == 1, pattern
    return changed


def serve(processes: Processes, text: str, hosts: str, advertised: str, port: int) -> Server:
    text = text.replace('"/var/', f'"{processes.folder}/var/')
    text = replaced(text, '^host = .*', f'host = "{hosts}"')
    text = replaced(text, '^#? ?advertiseAddress = .*', f'advertiseAddress = "{advertised}"')
    text = replaced(text, "^httpPort = .*", "httpPort = false")
    return processes.serve(text, log="var/log/kestrel/kestrel.log", endpoint=f"tcp:{port}:interface=127.0.0.1")


def test_server_joins_when_its_settings_say_so(processes: Processes, zookeeper: ZooKeeper) -> None:
    with own_port() as port:
        server = serve(processes, TEXT, zookeeper.hosts, "127.0.0.1", port)
        eventually(lambda: "this server is now in none of the two sets" in server.logged(), "it knows ZooKeeper")
        assert members(zookeeper.client, PREFIX) == {name: [] for name in SERVER_SETS}
        set_status(server, "Up")
        await_members(zookeeper, PREFIX, {port: "Up"})
        server.stop()
        serve(processes, TEXT, zookeeper.hosts, "127.0.0.1", port)
        await_members(zookeeper, PREFIX, {port: "Up"})


def test_commented_settings_are_valid(processes: Processes, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    text = re.sub(r"^# (?=(advertiseAddress|credentials|acl|tls|caFile) = )", "", TEXT, flags=re.MULTILINE)
    assert text.count("\n# ") == TEXT.count("\n# ") - 5
    text = replaced(text, "^caFile = .*", f'caFile = "{authority.ca_file}"')
    with own_port() as plain, own_port() as over, own_port() as port:
        zookeeper = ZooKeeper(tmp_path / "zookeeper", plain, over_tls(authority, over))
        try:
            zookeeper.start()
            server = serve(processes, text, f"127.0.0.1:{over}", "mq1.example", port)
            set_status(server, "Up")
            await_members(zookeeper, PREFIX, {port: "Up"})
            for name in SERVER_SETS:
                [node] = zookeeper.client.get_children(f"{PREFIX}/{name}")
                data, _ = zookeeper.client.get(f"{PREFIX}/{name}/{node}")
                assert b'"mq1.example"' in data and b"127.0.0.1" not in data
                entries, _ = zookeeper.client.get_acls(f"{PREFIX}/{name}")
                assert {(each.id.scheme, each.perms) for each in entries} == {("world", 1), ("digest", 31)}
        finally:
            zookeeper.close()
