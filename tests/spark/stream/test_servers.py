"""The options that name servers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kestrel.cluster.uri import KazooMissing, parse_server_set
from kestrel.spark.options import OptionValues, SourceFailed
from kestrel.spark.stream import server_directory
from kestrel.spark.stream.options import StreamServers, has_server_options, parse_servers
from kestrel.tls import TlsOptions
from tests.client.certificates import Authority
from tests.spark.stream.fakes import A, B, C, World

MQ1 = {"servers": "mq1"}
SET = "zk://me:secret@zk1/services/kestrel"


def servers_of(given: Mapping[str, str]) -> StreamServers:
    return parse_servers(OptionValues(given))


def test_servers_are_separated_by_commas_and_have_the_thrift_port() -> None:
    servers = servers_of({"servers": "mq1, mq2:22 ,[::1],[::1]:9,"})
    assert servers.addresses == ("mq1:2229", "mq2:22", "[::1]:2229", "[::1]:9")


def test_server_named_twice_counts_once() -> None:
    assert servers_of({"servers": "mq1,mq2,mq1:2229"}).addresses == ("mq1:2229", "mq2:2229")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"servers": ""}, r'no server is given: option\("servers", "mq1,mq2:2229"\)'),
        ({"servers": " , "}, "no server is given"),
        ({"servers": "mq1,mq 2"}, "servers: 'mq 2' is no address; write host, host:port"),
        ({"servers": "tcp://mq1"}, "servers: 'tcp://mq1' is no address"),
        ({"servers": "mq1:0"}, "servers: 0 is no port"),
        ({"servers": "mq1:70000"}, "servers: 70000 is no port"),
        ({"servers": f"{SET},mq1"}, "servers: a server set cannot be combined with servers: name only zk://zk1"),
        ({"servers": f"mq1,{SET}"}, "servers: a server set cannot be combined with servers"),
        ({"servers": f"mq1, zks{SET[2:]}"}, "servers: a server set cannot be combined with servers"),
        ({"servers": f"ZK{SET[2:]}"}, "servers: a server's address has no @; a server set begins with zk://"),
        ({"servers": "zk://me:secret@zk1"}, "servers: 'zk://zk1' has no path of the server sets; write zk://zk1/path"),
        ({"servers": "zk://zk1:0/services"}, "servers: 0 is no port"),
        ({"timeout": "soon"}, "timeout: .* is not a duration; write for example"),
        ({"patience": "-1"}, "patience: .* is not a duration"),
        ({"patience": ""}, "patience: .* is not a duration"),
        ({"patience": "9" * 5000}, "patience: .* is not a duration"),
        ({"patience": "2d"}, "patience is at most 1d, not 2d"),
        ({"timeout": "999999999"}, "timeout is at most 1d, not 999999999"),
        ({"timeout": "0"}, "timeout must be more than 0"),
        ({"tls": "yes"}, "tls must be true or false, not 'yes'"),
        ({"keyFile": "/etc/kestrel/key.pem"}, "keyFile requires certFile"),
        ({"tls": "false", "caFile": "/etc/kestrel/ca.pem"}, "caFile requires tls$"),
    ],
)
def test_mistake_is_reported_without_the_password_of_a_server_set(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceFailed, match=f"^{sentence}") as caught:
        servers_of({**MQ1, **given})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["zk://me:secret@zk1,zk2/services/kestrel", " zk://me:secret@zk1,zk2/services/kestrel/"]
)
def test_server_set_replaces_servers(text: str) -> None:
    servers = servers_of({**MQ1, "servers": text})
    assert servers.addresses == ()
    assert servers.server_set == parse_server_set("zk://me:secret@zk1,zk2/services/kestrel")
    assert pickle.loads(pickle.dumps(servers)) == servers
    assert "secret" not in repr(servers)


def test_missing_zookeeper_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_missing() -> None:
        raise KazooMissing

    monkeypatch.setattr(server_directory, "require_kazoo", is_missing)
    sentence = r"pip install 'kestrel-mq\[cluster\]', on the driver and on every worker$"
    with pytest.raises(SourceFailed, match=sentence):
        servers_of({**MQ1, "servers": "zk://zk1/services/kestrel"})
    there = StreamServers((), server_set=parse_server_set("zk://zk1/services/kestrel"))
    for ask in (there.to_read().addresses, there.to_write):
        with pytest.raises(SourceFailed, match=sentence):
            ask()


def test_server_set_over_tls_needs_its_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    text = f"zks://zk1/services/kestrel?ca={authority.ca_file}"
    there = servers_of({**MQ1, "servers": text})
    (tmp_path / "ca.pem").unlink()
    sentence = r"^zks://zk1:2181/services/kestrel: .*ca\.pem: No such file .*; every worker needs this TLS file$"
    with pytest.raises(SourceFailed, match=sentence):
        servers_of({**MQ1, "servers": text})
    with pytest.raises(SourceFailed, match=sentence):
        there.to_write()


# Servers for puts.


@pytest.fixture
def world() -> Iterator[World]:
    """Yield a world with a server set, which is not followed after the end."""
    world = World()
    yield world
    assert world.set.followers == 0


def planned(world: World, *writes: str) -> StreamServers:
    """Return the plan of a write while these members are in the set."""
    servers = world.server_set()
    world.set.writes(*writes)
    return servers.planned()


def test_task_puts_to_the_members_at_its_beginning(world: World) -> None:
    plan = planned(world, A)
    world.set.writes(B, C)
    assert plan.to_write() == (B, C)


def test_task_without_zookeeper_puts_to_the_members_of_the_plan(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    plan = planned(world, A, B)
    world.set.members = None
    assert plan.to_write() == (A, B)
    assert caplog.messages == [
        "zk://zk1:2181/services/kestrel does not answer; items are put to the members of the plan"
    ]


def test_task_without_members_fails_with_the_reason(world: World) -> None:
    servers = world.server_set()
    world.set.members = None
    plan = servers.planned()
    with pytest.raises(SourceFailed, match="zk://zk1:2181/services/kestrel is not known after"):
        plan.to_write()
    world.set.reads(A)
    for each in (plan, servers.planned()):
        with pytest.raises(SourceFailed, match="there is no server in zk://zk1:2181/services/kestrel/write that"):
            each.to_write()


def test_empty_set_is_not_taken_for_an_unknown_one(world: World) -> None:
    plan = planned(world, A)
    world.set.writes()
    with pytest.raises(SourceFailed, match="/write that speaks thrift"):
        plan.to_write()


def test_list_is_used_unchanged() -> None:
    servers = servers_of(MQ1)
    assert servers.planned() == servers
    assert servers.to_write() == ("mq1:2229",)


def test_options_that_name_servers_are_recognised_in_any_case() -> None:
    assert has_server_options({"SERVERS": "mq1"}) and not has_server_options({"server": "one", "path": "/spool"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("1.5", 1.5), ("500ms", 0.5), ("2m", 120), ("1m30s", 90), ("2 minutes", 120), (" 3 ", 3)],
)
def test_times_are_numbers_of_seconds_or_have_a_unit(text: str, seconds: float) -> None:
    servers = servers_of({**MQ1, "timeout": text, "patience": text})
    assert (servers.timeout_s, servers.patience_s) == (seconds, seconds)


def test_tls_is_off_unless_an_option_names_it() -> None:
    assert servers_of(MQ1).tls is None
    assert servers_of({**MQ1, "tls": "false"}).tls is None
    assert servers_of({**MQ1, "tls": "true"}).tls == TlsOptions()
    assert servers_of({**MQ1, "serverName": "mq.example"}).tls == TlsOptions(server_name="mq.example")


def test_tls_files_are_read_with_the_options(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("mq.example")
    given = {**MQ1, "caFile": authority.ca_file, "certFile": certificate, "keyFile": key}
    assert servers_of(given).tls == TlsOptions(authority.ca_file, certificate, key)
    for name in ("caFile", "certFile", "keyFile"):
        with pytest.raises(SourceFailed, match=f"^TLS: {tmp_path}/nothing.pem: No such file"):
            servers_of({**given, name: f"{tmp_path}/nothing.pem"})
    with pytest.raises(SourceFailed, match=f"^TLS: {key}: no certificates that can be read"):
        servers_of({**given, "caFile": key})


def test_options_are_pickled_for_worker_with_tls_files(tmp_path: Path) -> None:
    servers = servers_of({**MQ1, "caFile": Authority(tmp_path).ca_file, "patience": "5"})
    there = pickle.loads(pickle.dumps(servers))
    assert there == servers
    with there.open("mq1") as server:  # without an error
        assert str(server) == "mq1:2229"
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(SourceFailed, match=r"ca\.pem: No such file .* every worker needs this TLS file"):
        there.open("mq1")
