"""kestrel-cli: statistics, settings, administration of queues, and errors."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kestrel.client.retrying_server import RetryingServer
from kestrel.tools.cli.command import main
from kestrel.tools.tool_runner import Clock
from tests.client.certificates import Authority
from tests.client.scripted import scripted, talk
from tests.client.test_tls import HOST, served_by
from tests.server.running import Processes, Server, own_port
from tests.tools.conftest import Cli, error_of, pauses, put, with_scripted


@pytest.fixture
def unreachable() -> Iterator[str]:
    """Return an address where nothing listens."""
    with own_port() as port:
        yield f"127.0.0.1:{port}"


def lines(out: bytes) -> list[str]:
    return out.decode().splitlines()


# stats


def test_stats_have_a_line_for_the_server_and_a_table(server: Server, cli: Cli) -> None:
    put(server, b"x" * 1536, b"y")
    status, out, said = cli("stats", "work", "orders")
    assert (status, said) == (0, "")
    first, *table = lines(out)
    address = re.escape(f"127.0.0.1:{server.port}")
    assert re.fullmatch(address + r": kestrel \S+, up \S+, 2 queues, 2 items, 1.5 KiB, \d connections?", first)
    heading, row, alias = table
    assert re.split(" {2,}", heading) == ["queue", "items", "bytes", "last wait", "waiters", "open reads", "oldest"]
    assert re.fullmatch(r"work +2 +1\.5 KiB +0 +0 +0 +[0-9.]+ ?m?s?", row)
    # Other tests put to the alias of the server that they share.
    assert re.fullmatch(r"orders: alias of work,small, \d+ items? put to it", alias)


def test_stats_have_a_column_if_items_are_delayed(server: Server, cli: Cli) -> None:
    put(server, b"x")
    with server.connect() as client:
        client.put(b"later/delay=3600000", b"y", b"z")
        client.put(b"later", b"x")
    heading, *rows = lines(cli("stats")[1])[1:4]
    assert re.split(" {2,}", heading)[:4] == ["queue", "items", "delayed", "bytes"]
    assert sorted(row.split()[:3] for row in rows) == [["later", "1", "2"], ["work", "1", "0"]]


def test_stats_of_a_missing_queue_have_status_1(server: Server, cli: Cli) -> None:
    put(server, b"x")
    status, out, said = cli("stats", "nosuch", "work")
    assert (status, said) == (1, "kestrel-cli: there is no queue nosuch\n")
    assert "work       1" in out.decode()


def test_server_line_counts_shown_and_all_queues(server: Server, cli: Cli) -> None:
    put(server, b"x")
    assert ", 1 of 2 queues, 1 item, " in lines(cli("stats", "work")[1])[0]
    assert any(line.startswith("work ") for line in lines(cli("stats")[1]))
    status, out, said = cli("stats", "nosuch")
    assert (status, said, len(lines(out))) == (1, "kestrel-cli: there is no queue nosuch\n", 1)
    assert ", 0 of 2 queues, " in out.decode()


def test_json_stats_have_numbers(server: Server, cli: Cli) -> None:
    put(server, b"x")
    status, out, _ = cli("stats", "--json")
    [figures] = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert figures["server"] == f"127.0.0.1:{server.port}"
    assert figures["queues"]["work"]["items"] == 1
    assert figures["queues"]["orders"]["children"] == "work,small"
    assert {"uptime", "curr_items", "queue_creates"} <= set(figures["stats"])
    assert isinstance(figures["stats"]["reserved_memory_ratio"], float)
    assert not [name for name in figures["stats"] if name.startswith("queue_work")]


def test_different_names_are_shown_differently(server: Server, cli: Cli) -> None:
    with server.connect() as client:
        client.put(b"a\x85", b"x")
        client.put("a\x85".encode(), b"x")
    status, out, _ = cli("stats", "--json")
    [figures] = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert {r"a\x85", r"a\xc2\x85"} <= set(figures["queues"])


def test_raw_stats_are_the_lines_of_the_server(server: Server, cli: Cli) -> None:
    put(server, b"x")
    assert lines(cli("stats", "--raw")[1])[0].startswith("STAT uptime ")
    of_work = lines(cli("stats", "--raw", "work")[1])
    assert of_work[:2] == ["STAT queue_work_items 1", "STAT queue_work_bytes 1"]
    growing = "STAT queue_work_oldest_age_msec"
    every = {line for line in lines(cli("stats", "--raw")[1]) if not line.startswith(growing)}
    assert [line.rpartition(" ")[0] for line in of_work if line not in every] == [growing]


def test_watched_stats_end_with_ctrl_c(server: Server, cli: Cli) -> None:
    put(server, b"x")
    paused: list[float] = []
    clock = Clock(lambda: 0.0, pauses(paused, ends_after=3))
    status, out, said = cli("stats", "work", "--watch", clock=clock)
    assert (status, said, paused) == (0, "", [2.0] * 3)
    assert out.count(b"\nwork       1    1 B          0        0           0  ") == 3
    paused.clear()
    assert len(cli("stats", "--json", "--watch=500ms", clock=clock)[1].splitlines()) == 3
    assert paused == [0.5] * 3
    paused.clear()
    assert cli("stats", "nosuch", "--watch", clock=clock)[0] == 0, "the queue may be created later"


def test_watching_continues_while_a_server_is_away(server: Server, cli: Cli, unreachable: str) -> None:
    arguments = ["--server", f"{unreachable},127.0.0.1:{server.port}", "stats", "--raw", "--watch"]
    status, out, said = cli(*arguments, clock=Clock(lambda: 0.0, pauses([], ends_after=2)))
    assert (status, out.count(b"STAT uptime ")) == (0, 2)
    assert said.count(f"kestrel-cli: cannot connect to {unreachable}: Connection refused; ") == said.count("\n") == 2


def test_watched_stats_clear_the_terminal(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    put(server, b"x")
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["stats", "work", "--watch"], Clock(lambda: 0.0, pauses([], ends_after=2))) == 0
        monkeypatch.undo()
    shown = b""
    with suppress(OSError):  # the other side is closed
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    first, second = shown.split(b"\x1b[H\x1b[J")
    assert first.count(b"work       1 ") == second.count(b"work       1 ") == 1


def test_names_and_replies_are_escaped(cli: Cli) -> None:
    stats = (b"stats\r\n", b"STAT version 1\x1b[2J\r\nEND\r\n")
    dump = (b"dump_stats\r\n", b"queue 'a\x1b[2J\xff' {\r\n  items=1\r\n}\r\nEND\r\n")
    out = with_scripted(cli, [stats, dump], "stats")[1]
    assert b"\x1b" not in out
    assert rb"a\x1b[2J\xff      1" in out
    assert with_scripted(cli, [(b"version\r\n", b"VERSION \x1b[2J\r\n")], "version")[1] == b"\\x1b[2J\n"
    assert r"\x1b[2J" in with_scripted(cli, [(b"status\r\n", b"SERVER_ERROR \x1b[2J\r\n")], "status")[2]


# Other commands.


def test_status_is_shown_and_changed(server: Server, cli: Cli) -> None:
    assert cli("status") == (0, b"Up\n", "")
    assert cli("status", "readonly") == (0, b"ReadOnly\n", "")
    said = error_of(cli, 3, "put", "work", "a")
    assert said == (
        f"kestrel-cli: 127.0.0.1:{server.port} refused or failed: the server is ReadOnly\n"
        "kestrel-cli: 0 items put; not put: item 1\n"
    )
    assert cli("status", "Up") == (0, b"Up\n", "")


def test_list_names_the_queues_of_all_servers_and_no_alias(server: Server, cli: Cli, unreachable: str) -> None:
    assert cli("list") == (0, b"", "")
    put(server, b"x")
    assert cli("put", "m\xfcll", "y")[0] == 0
    assert cli("list") == (0, "m\xfcll\nwork\n".encode(), "")
    address = f"127.0.0.1:{server.port}"
    assert cli("--server", f"{address},{address}", "list")[1] == "m\xfcll\nwork\n".encode()
    assert cli("--server", f"{unreachable},{address}", "list")[0] == 3


def test_reload_reads_the_configuration_again(processes: Processes, cli: Cli) -> None:
    server = processes.serve('queuePath = "queues"\n')
    at = ("--server", f"127.0.0.1:{server.port}")
    processes.write("kestrel.toml", 'queuePath = "queues"\n[default]\nmaxItems = 7\n')
    assert cli(*at, "reload") == (0, b"reloaded\n", "")
    assert b"maxItems = 7" in cli(*at, "dump-config", "work")[1]
    processes.write("kestrel.toml", "maxItems = 7\n")
    said = error_of(cli, 3, *at, "reload")
    assert "maxItems" in said


def test_settings_are_shown_as_text_and_json(server: Server, cli: Cli) -> None:
    status, out, _ = cli("dump-config", "small", "orders")
    assert status == 0
    assert lines(out)[:2] == ["small", "  maxItems = 3"]
    assert lines(out)[-2:] == ["orders", "  destinationQueues = work,small"]
    [settings] = [json.loads(line) for line in cli("dump-config", "--json", "small")[1].splitlines()]
    assert settings["server"] == f"127.0.0.1:{server.port}"
    assert settings["queues"]["small"]["maxItems"] == "3"


def test_queues_are_flushed_and_deleted_without_a_terminal(server: Server, cli: Cli) -> None:
    put(server, b"a")
    assert cli("flush", "work") == (0, b"", "")
    assert cli("get", "work")[0] == 1
    assert cli("delete", "work") == (0, b"", "")
    assert cli("stats", "work")[0] == 1


@pytest.mark.parametrize("what", ["flush", "delete"])
def test_missing_queue_is_neither_flushed_nor_deleted(server: Server, cli: Cli, unreachable: str, what: str) -> None:
    assert cli(what, "nosuch") == (1, b"", "kestrel-cli: there is no queue nosuch\n")
    assert cli("--server", f"127.0.0.1:{server.port},{unreachable}", what, "nosuch")[0] == 3
    put(server, b"a")
    status, _, said = cli("--server", f"{unreachable},127.0.0.1:{server.port}", what, "work")
    assert (status, said.count("\n")) == (3, 1)
    assert cli("get", "work")[0] == 1


def test_close_range_releases_a_lost_reader(processes: Processes, cli: Cli) -> None:
    server = processes.serve("", "--storage", "scroll:queues")
    address = f"127.0.0.1:{server.port_of('thrift')}"
    with RetryingServer(address) as thrift:
        thrift.ask(lambda calls: calls.open_range(b"work", b"sp{rk"))
        close = ("--server", address, "--protocol", "thrift", "close-range", "work")
        said = error_of(cli, 1, *close, "other")
        assert said == (
            f"kestrel-cli: {address}: the queue work is already read by another reader: sp{{rk\n"
        )
        assert cli(*close, "sp{rk") == cli(*close, "other") == (0, b"", "")
        assert thrift.ask(lambda calls: calls.open_range(b"work", b"other")).first_id == 1


def test_close_range_needs_thrift(server: Server, cli: Cli) -> None:
    said = error_of(cli, 2, "close-range", "work", "spark")
    assert said == (
        "kestrel-cli: memcache has no such request: use --protocol thrift, and name its port\n"
    )


def test_expired_items_are_dropped_and_counted(server: Server, cli: Cli) -> None:
    with server.connect() as client:
        client.ask(b"set work 0 -1 1\r\na\r\nset work 0 -1 1\r\nb\r\n", b"STORED\r\n" * 2)
    status, out, _ = cli("flush-expired", "work")
    assert (status, out) in [(0, b"1\n"), (0, b"2\n")]  # a put may already have dropped the first item
    assert cli("flush-expired") == (0, b"0\n", "")
    with server.connect() as client:
        client.ask(b"set work 0 -1 1\r\na\r\nset other 0 -1 1\r\nb\r\n", b"STORED\r\n" * 2)
    assert cli("flush-expired", "work", "other") == (0, b"2\n", "")


def test_replies_of_several_servers_have_their_names(server: Server, cli: Cli, unreachable: str) -> None:
    address = f"127.0.0.1:{server.port}"
    status, out, said = cli("--server", unreachable, "--server", address, "status")
    assert (status, out) == (3, f"{address}: Up\n".encode())
    assert said.startswith(f"kestrel-cli: cannot connect to {unreachable}: Connection refused; ")


def test_error_names_a_single_server_once(server: Server, cli: Cli) -> None:
    address = f"127.0.0.1:{server.port_of('thrift')}"
    status, _, said = cli("--server", address, "peek", "work")
    assert (status, said.count(address)) == (3, 1)


LOOK = (b"dump_stats work\r\n", b"queue 'work' {\r\n  items=1\r\n}\r\nEND\r\n")
"""The check whether the queue exists, which ends at the first server that has it."""


@pytest.mark.parametrize(
    ("arguments", "exchanges"),
    [
        (["flush", "work"], [LOOK, (b"flush work\r\n", b"END\r\n")]),
        (["delete", "--yes", "work"], [LOOK, (b"delete work\r\n", b"DELETED\r\n")]),
        (["status", "ReadOnly"], [(b"status ReadOnly\r\n", b"END\r\n"), (b"status\r\n", b"READONLY\r\n")]),
    ],
)
def test_change_is_made_at_each_server(cli: Cli, arguments: list[str], exchanges: list[tuple[bytes, bytes]]) -> None:
    without_a_look = [exchange for exchange in exchanges if exchange != LOOK]
    with scripted(talk(*exchanges)) as one, scripted(talk(*without_a_look)) as two:
        assert cli("--server", one.address, "--server", two.address, *arguments)[0] == 0


def test_environment_may_name_several_servers(
    server: Server, cli: Cli, unreachable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KESTREL_SERVERS", f"127.0.0.1:{server.port}, {unreachable}")
    assert cli("status")[:2] == (3, f"127.0.0.1:{server.port}: Up\n".encode())
    assert cli("--server", f"127.0.0.1:{server.port}", "status") == (0, b"Up\n", "")


def test_server_options_may_follow_the_command(server: Server, cli: Cli, unreachable: str) -> None:
    put(server, b"a")
    address = f"127.0.0.1:{server.port}"
    assert cli("--server", unreachable, "peek", "work", "--server", address) == (0, b"a\n", "")
    assert cli("get", "--timeout", "5s", "work", "--server", address) == (0, b"a\n", "")
    assert cli("put", "work", "--server", address, "a", "--", "-b") == (0, b"2 items put\n", "")
    thrift = f"127.0.0.1:{server.port_of('thrift')}"
    assert cli("get", "work", "--server", thrift, "--protocol", "thrift") == (0, b"a\n", "")


# Errors.


def test_unreachable_server_is_reported_with_a_remedy(cli: Cli, unreachable: str) -> None:
    for arguments in (["version"], ["get", "work"], ["peek", "work"], ["put", "work", "a"], ["monitor", "work"]):
        said = error_of(cli, 3, "--server", unreachable, *arguments)
        assert said.startswith(
            f"kestrel-cli: cannot connect to {unreachable}: Connection refused; "
            "is the server running? name another with --server"
        )
        assert said.count("\n") == (2 if "put" in arguments else 1)
    said = error_of(cli, 3, "--server", "no-such-host.invalid", "version")
    assert said.endswith("; name another with --server\n")
    assert "[Errno" not in said


@pytest.mark.parametrize(
    ("exchanges", "says"),
    [
        (
            [(b"version\r\n", b"220 smtp.example ESMTP\r\n")],
            "; does it speak memcache there, without TLS? name another port with --server\n",
        ),
        ([], "; is the server still running? does it speak memcache there, without TLS?\n"),
    ],
    ids=["another protocol", "closed connection"],
)
def test_unusable_server_is_reported(cli: Cli, exchanges: list[tuple[bytes, bytes]], says: str) -> None:
    assert error_of(with_scripted, 3, cli, exchanges, "version").endswith(says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tls", "--protocol", "thrift"], "; does it speak thrift there, with TLS?\n"),
        (
            [],
            ": no answer: timed out; give it more time with --timeout; does it speak memcache there, without TLS?\n",
        ),
    ],
    ids=["TLS", "no TLS"],
)
def test_server_without_an_answer_times_out(cli: Cli, options: list[str], says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        status, _, said = cli(*options, "--timeout", "1ms", "--server", address, "version")
    assert (status, address in said, said.endswith(says)) == (3, True, True)


def test_tls_with_a_server_without_it_is_reported(server: Server, cli: Cli) -> None:
    said = error_of(cli, 3, "--tls", "version")
    this_port = f"127.0.0.1:{server.port}: this port does not use TLS: leave out --tls, or name another port"
    assert said == f"kestrel-cli: {this_port} with --server\n"


@pytest.mark.parametrize(
    ("version", "signer", "says"),
    [
        ("TLSv1_3", None, "this server requires a client certificate: pass --cert and --key"),
        (
            "TLSv1_3",
            "another authority",
            "this server does not trust the CA of the client certificate: pass another one with --cert and --key",
        ),
        (
            "TLSv1_2",
            None,
            "this server refuses the connection: it may require a client certificate (--cert and --key)",
        ),
    ],
)
def test_refused_client_certificate_is_reported_with_a_remedy(
    cli: Cli, tmp_path: Path, version: str, signer: str | None, says: str
) -> None:
    authority = Authority(tmp_path)
    context = served_by(authority)
    context.maximum_version = ssl.TLSVersion[version]
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.ca_file)
    certificate: list[str] = []
    if signer is not None:
        folder = tmp_path / "other"
        folder.mkdir()
        cert_file, key_file = Authority(folder, signer).sign("worker.example")
        certificate = ["--cert", cert_file, "--key", key_file]
    with pytest.raises(ssl.SSLError), scripted(talk(), tls=context) as served:  # at the end of the server
        options = ["--server", served.address, "--tls", "--ca", authority.ca_file, "--server-name", HOST]
        status, out, said = cli(*options, *certificate, "version")
    assert (status, out, said) == (3, b"", f"kestrel-cli: {served.address}: {says}\n")


def test_tls_uses_the_given_certificates(cli: Cli, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = served_by(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.ca_file)
    cert_file, key_file = authority.sign("worker.example")
    options = ["--tls", "--ca", authority.ca_file, "--cert", cert_file, "--key", key_file]
    with scripted(talk((b"version\r\n", b"VERSION 1\r\n")), tls=context) as server:
        options += ["--server", server.address, "--server-name", HOST]
        assert cli(*options, "version") == (0, b"1\n", "")


def test_untrusted_server_is_refused(cli: Cli, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with (
        pytest.raises(ssl.SSLError),  # at the end of the server
        scripted(talk(), tls=served_by(authority, "other.example")) as server,
    ):
        options = ["--server", server.address, "--tls", "--ca", authority.ca_file, "--server-name", HOST]
        said = error_of(cli, 3, *options, "version")
    assert "Hostname mismatch" in said
    assert said.endswith("; name its CA with --ca, and the name in its certificate with --server-name\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: COMMAND"),
        (["pot"], "there is no command 'pot'; did you mean put? kestrel-cli help lists all commands\n"),
        (["help", "lst"], "there is no command 'lst'; did you mean list? kestrel-cli help lists all commands\n"),
        (["xyzzy"], "there is no command 'xyzzy'; kestrel-cli help lists all commands\n"),
        (["get"], "required: QUEUE"),
        (["get", "a/b"], "a queue name cannot hold / ~ . white space or control characters"),
        (["get", "-n", "0", "work"], "'0' is not a whole number of at least 1"),
        (["get", "-n", "1e3", "work"], "'1e3' is not a whole number of at least 1"),
        (["get", "--wait", "soon", "work"], '"soon" is not a duration'),
        (["get", "--all", "-n", "2", "work"], "not allowed with argument"),
        (["put", "--expires-in", "0", "work", "a"], "it must be longer than 0"),
        (["--timeout", "99999999999999", "stats"], "is more than 36500 days"),
        (["--timeout", "30d", "stats"], "is more than 2147483 seconds (24 days), the maximum"),
        (["drain", "--from", "a", "--timeout", "999999999999", "work"], "is more than 36500 days"),
        (["stats", "--watch", "9999999999", "work"], "is more than 36500 days"),
        (["top", "--once", "--interval", "99999999999"], "is more than 36500 days"),
        (["top", "--timeout", "9999999999"], "is more than 36500 days"),
        (["put", "--whole", "work", "a"], "leave out the items"),
        (["stats", "--watch", "work"], '"work" is not a duration'),
        (["status", "down"], "there is no status 'down'; there are Up, WriteAvoid, ReadOnly, Quiescent"),
        (["--server", "a b", "version"], "is no address; write host, host:port or [::1]:port"),
        (["--server", "a:0", "version"], "0 is no port"),
        (["--protocol", "text", "version"], "invalid choice: 'text'"),
        (["--protocol", "thrift", "stats"], "leave out --protocol thrift"),
        (["--protocol", "thrift", "list"], "leave out --protocol thrift"),
        (["--protocol", "thrift", "reload"], "leave out --protocol thrift"),
        (["--ca", "ca.pem", "version"], "need --tls"),
        (["--tls", "--key", "key.pem", "version"], "--key needs the --cert"),
        (["--tls", "--ca", "/nosuch/ca.pem", "version"], "--ca: /nosuch/ca.pem cannot be read: No such file"),
        (["--tls", "--cert", "/", "version"], "--cert: / cannot be read: Is a directory"),
        (["--tls", "--ca", "/dev/null", "version"], "--ca: /dev/null cannot be used: "),
        (["--tls", "--cert", "/dev/null", "version"], "--cert: /dev/null cannot be used: "),
        (["put"], "required: QUEUE\n"),
        (["put", "work", "-x"], "unrecognized arguments: -x; write items that begin with - after --: put QUEUE -- -x"),
        (["get", "work", "-x"], "unrecognized arguments: -x\n"),
        (["--server", "a,", "version"], "'' is no address"),
    ],
)
def test_invalid_command_line_has_status_2(cli: Cli, arguments: list[str], words: str) -> None:
    said = error_of(cli, 2, *arguments)
    assert words in said
    assert "Traceback" not in said


COMMANDS = (
    *("put", "get", "peek", "monitor", "stats", "status", "help", "list", "reload", "dump-config", "version"),
    *("flush", "delete", "flush-expired"),
)


def test_help_command_prints_what_the_option_prints(cli: Cli) -> None:
    assert cli("help") == cli("--help")
    assert cli("help", "put") == cli("put", "--help")
    assert cli("help", "put")[0] == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_each_command_and_has_its_example(cli: Cli, command: str) -> None:
    status, out, _ = cli("--help")
    assert (status, re.search(rf"^ +{command} ", out.decode(), re.MULTILINE) is not None) == (0, True)
    status, out, _ = cli(command, "--help")
    assert status == 0
    assert f"  kestrel-cli {command}" in out.decode().partition("examples:\n")[2]
