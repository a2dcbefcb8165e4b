"""The real process: its start, log and stop, and its data after a kill."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kestrel import __version__
from kestrel.compiled import BUILD
from kestrel.server.startup_errors import EX_CANNOT_CREATE, EX_CONFIG, EX_TRY_AGAIN, EX_UNAVAILABLE
from kestrel.storage.registry import FACTORIES
from tests.child import Child
from tests.client.certificates import Authority
from tests.memcache_text import set_
from tests.server.running import (
    ANY_PORT,
    ROOT,
    Client,
    Processes,
    Server,
    eventually,
    is_serving_in,
    port_in,
)

CONFIG = 'queuePath = "queues"\nmaxOpenTransactions = 100\n'
FOREGROUND_AND_DAEMON = pytest.mark.parametrize("daemon", [False, True], ids=["foreground", "daemon"])

BOTH_REPLIES = b"STORED\r\nVALUE work 0 5\r\nhello\r\nEND\r\n"


# Start.


@pytest.mark.needs("nc")
def test_log_names_ports_and_first_steps(processes: Processes) -> None:
    server = processes.serve(CONFIG, "--trust", "memcache=tcp:0:interface=127.0.0.1")
    try_it = rf"printf 'set work 0 0 5\r\nhello\r\nget work\r\nquit\r\n' | nc localhost {server.port}"
    eventually(lambda: try_it + "\n" in server.logged(), "the log says what to try")
    log = server.logged()
    assert f"memcache: listening on 127.0.0.1:{server.port}\n" in log
    assert f"admin: listening on http://127.0.0.1:{server.port_of('admin')}/\n" in log
    assert log.index(f"memcache: listening on 127.0.0.1:{server.port}\n") < log.index("printf")
    done = processes.run("sh", "-c", f"{try_it} > replies")
    assert (done.returncode, (processes.folder / "replies").read_bytes()) == (0, BOTH_REPLIES)


@pytest.mark.parametrize(
    ("level", "names_twisted"), [("info", False), ("debug", True)], ids=["by default", "when debugging"]
)
def test_start_logs_one_line_for_each_port(processes: Processes, level: str, names_twisted: bool) -> None:
    server = processes.serve(f'{CONFIG}[logging]\nlevel = "{level}"\n')
    server.stop()
    logged = [line.split("] ", 1)[1] for line in server.logged().splitlines()]
    own = [line for line in logged if not line.startswith(("twistd ", "reactor class", "Main loop", "Server Shut"))]
    assert [line.partition(":")[0] for line in own[:4]] == ["memcache", "text", "thrift", "admin"]
    assert own[4].startswith("kestrel ") and own[5].startswith("Try it: ")
    assert own[6:] == ["kestrel is stopping", "kestrel has stopped"]
    assert (own != logged) is names_twisted


def test_queues_are_kept_in_the_state_directory_by_default(
    processes: Processes,
) -> None:
    process = processes.run(*processes.twistd("--validate"))
    assert process.returncode == 0, process.stderr
    server = processes.serve("")
    with server.connect() as client:
        client.put(b"work", b"hello")
    folder = processes.folder / "state" / "kestrel" / "queues"
    assert (folder / "work").exists()
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "work").stat().st_mode & 0o077 == 0


def test_several_endpoints_serve_the_same_queues(processes: Processes) -> None:
    server = processes.serve(CONFIG, "--memcache", ANY_PORT, "--memcache", "unix:kestrel.sock")
    ports = [int(port) for port in re.findall(r"memcache: listening on 127\.0\.0\.1:(\d+)", server.logged())]
    assert len(set(ports)) == 2
    assert (processes.folder / "kestrel.sock").is_socket()
    with Client(ports[0]) as first, Client(ports[1]) as second:
        first.put(b"work", b"hello")
        assert second.get(b"work") == b"hello"


def test_items_are_never_logged(processes: Processes) -> None:
    config = CONFIG + 'enableSessionTrace = true\n[default]\nenableTrace = true\n[logging]\nlevel = "debug"\n'
    server = processes.serve(config)
    with server.connect() as client:
        client.put(b"work", b"top secret data")
        client.get(b"work/open")
        client.send(b"get work/close\r\nset work 0 0 3\r\ntop secret data\r\n")
        client.to_the_end()
    server.stop()
    assert "secret" not in server.stdout() + server.stderr()


# Stop.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_waiters_and_monitors(processes: Processes, number: signal.Signals) -> None:
    server = processes.serve(CONFIG)
    with server.connect() as waiter, server.connect() as monitor, server.connect() as other:
        waiter.send(b"get work/t=60000\r\n")
        monitor.send(b"monitor work 60\r\n")
        eventually(lambda: other.stats().get("queue_work_waiters") == "2", "both stand in line")
        server.signal(number)
        assert waiter.to_the_end() == b"END\r\n"
        assert monitor.to_the_end() == b"END\r\n"
        assert other.to_the_end() == b""
        assert server.exit_status() == 0
    assert server.stderr() == ""
    assert "Traceback" not in server.logged()


def test_a_stop_finishes_pending_replies(processes: Processes) -> None:
    server = processes.serve(CONFIG)
    item = os.urandom(8 << 20)
    reply = b"VALUE work 0 %d\r\n%b\r\nEND\r\n" % (len(item), item)
    with server.connect() as client:
        client.put(b"work", item)
        client.send(b"get work\r\n")
        client.expect(reply[:100])  # most of the reply is still in the server, because sockets hold less
        server.signal(signal.SIGTERM)
        eventually(lambda: "kestrel is stopping" in server.logged(), "the stop begins")
        assert client.to_the_end() == reply[100:]
    server.exit_status()


def test_client_that_never_reads_does_not_prevent_a_stop(processes: Processes) -> None:
    server = processes.serve(CONFIG)
    with server.connect() as client:
        client.put(b"work", bytes(8 << 20))
        client.send(b"get work\r\n")
        client.expect(b"VALUE")
        server.signal(signal.SIGTERM)
        server.exit_status()
    assert "Traceback" not in server.logged()


def test_a_client_can_ask_for_the_stop(processes: Processes) -> None:
    server = processes.serve(CONFIG)
    with server.connect() as client, server.connect() as waiter:
        waiter.send(b"get work/t=60000\r\n")
        eventually(lambda: client.stats().get("queue_work_waiters") == "1", "it waits")
        client.send(b"shutdown\r\n")
        assert client.to_the_end() == b""
        assert waiter.to_the_end() == b"END\r\n"
    assert server.exit_status() == 0


def test_all_items_are_back_after_a_restart(processes: Processes) -> None:
    items = [b"", b"\r\n", b"END\r\n", bytes(range(256)), b"x" * 100_000]
    server = processes.serve(CONFIG)
    with server.connect() as client, server.connect() as reader:
        client.put(b"work", *items)
        client.put(b"other", b"1", b"2", b"3")
        assert reader.get(b"other/open") == b"1"
        assert reader.get(b"other/open") == b"2"
        server.stop()
    with processes.serve(CONFIG).connect() as client:
        assert [client.get(b"work") for _ in items] == items
        assert client.get(b"work") is None
        assert [client.get(b"other") for _ in range(4)] == [b"1", b"2", b"3", None]


# SIGHUP: the log and the configuration.


LOGGING = '[logging]\nfile = "kestrel.log"\n'


def test_a_hangup_reopens_the_log(processes: Processes) -> None:
    server = processes.serve(CONFIG + LOGGING, log="kestrel.log")
    moved = server.log.rename(processes.folder / "kestrel.log.old")
    server.signal(signal.SIGHUP)
    eventually(lambda: "reloaded" in server.logged(), "the new log tells of the reload")
    assert "reloaded" not in moved.read_text()
    assert server.log.stat().st_mode & 0o077 == 0


def test_hangup_keeps_log_that_cannot_be_reopened(
    processes: Processes,
) -> None:
    folder = processes.folder / "logs"
    folder.mkdir()
    log = folder / "server.log"
    config = CONFIG + '[logging]\nfile = "logs/server.log"\n[default]\nmaxItems = %d\n'
    server = processes.serve(config % 1, log="logs/server.log")
    port = server.port
    away = folder.rename(processes.folder / "away")
    processes.write("kestrel.toml", config % 2)
    server.signal(signal.SIGHUP)
    eventually(lambda: "Cannot reopen the log" in (away / log.name).read_text(), "the log says so")

    def max_items() -> bytes:
        with Client(port) as client:
            client.send(b"dump_config work\r\nquit\r\n")
            return client.to_the_end().split(b"\r\n")[1]

    eventually(lambda: max_items() == b"  maxItems=2", "the configuration was read")
    away.rename(folder)
    log.rename(folder / "server.log.1")
    server.signal(signal.SIGHUP)
    eventually(lambda: log.exists() and "reloaded" in log.read_text(), "the log is opened anew")


def test_lines_of_another_process_are_kept(processes: Processes) -> None:
    server = processes.serve(CONFIG + LOGGING, log="kestrel.log")
    with server.log.open("a") as log:
        log.write("another's line\n")
    reload_by_hangup(server)
    assert "another's line\n" in server.logged()


def test_a_hangup_reopens_the_log_of_the_command_line(processes: Processes) -> None:
    log = processes.folder / "twistd.log"
    processes.write("kestrel.toml", CONFIG)
    command = processes.twistd("--config", "kestrel.toml", "--memcache", ANY_PORT, logfile="twistd.log")
    with Child[bytes](command, cwd=processes.folder, env=processes.environment()) as process:
        try:
            eventually(lambda: log.exists() and is_serving_in(log.read_text()), "the server serves")
            log.rename(processes.folder / "twistd.log.old")
            process.send_signal(signal.SIGHUP)
            eventually(lambda: log.exists() and "reloaded" in log.read_text(), "the new log tells of the reload")
        finally:
            process.kill()


def reload_by_hangup(server: Server) -> None:
    before = server.logged().count("The configuration was reloaded")
    server.signal(signal.SIGHUP)
    eventually(lambda: server.logged().count("The configuration was reloaded") > before, "the reload")


def reload_by_command(server: Server) -> None:
    with server.connect() as client:
        client.ask(b"reload\r\n", b"Reloaded config.\r\n")


BROKEN = 'queuePath = "queues"\nmaxOpenTransactions = "many"\nmaxOpenTransaction = 1\n'


def test_reload_of_invalid_file_replies_with_one_line(processes: Processes) -> None:
    valid = 'queuePath = "queues"\nmaxOpenTransactions = %d\n'
    server = processes.serve(valid % 2)
    processes.write("kestrel.toml", BROKEN)
    with server.connect() as client:
        client.send(b"reload\r\n")
        reply = client.line()
        assert reply.startswith(b"SERVER_ERROR ")
        assert b"maxOpenTransactions" in reply
        assert reply.endswith(b"\r\n")
        client.put(b"work", b"1", b"2", b"3")
        assert [client.get(b"work/open") for _ in range(2)] == [b"1", b"2"]
        server.signal(signal.SIGHUP)
        eventually(lambda: server.logged().count("was not reloaded") == 2, "a hangup reloads nothing either")
        processes.write("kestrel.toml", valid % 3)
        reload_by_command(server)
        assert client.get(b"work/open") == b"3"
    assert "Traceback" not in server.logged()


def sessions_told_of(server: Server) -> int:
    """Return the number of logged connections, after one more was made."""
    with server.connect() as client:
        client.ask(b"version\r\n", f"VERSION {__version__}\r\n".encode())  # it is logged before it is answered
        return server.logged().count("Session opened")


def test_a_reload_changes_the_log_levels(processes: Processes) -> None:
    traced = CONFIG + "enableSessionTrace = true\n"
    server = processes.serve(traced)
    assert sessions_told_of(server) == 1
    for quiet in ('level = "warn"\n', 'level = "info"\nlevels = {"kestrel.net" = "error"}\n'):
        before = server.logged().count("Session opened")
        processes.write("kestrel.toml", traced + "[logging]\n" + quiet)
        reload_by_command(server)  # the last logged connection
        assert sessions_told_of(server) == before + 1
        assert sessions_told_of(server) == before + 1
        processes.write("kestrel.toml", traced)
        reload_by_command(server)
        assert sessions_told_of(server) == before + 2


@pytest.mark.parametrize(
    "setting",
    [
        'listenAddress = "127.0.0.1"',
        "connectionBacklog = 77",
        "memcacheListenPort = 1234",
        'storage = "journal:elsewhere"',
        'diskReserveSize = "1MiB"',
        'statusFile = "elsewhere"',
        'tls.certFile = "{}"\ntls.keyFile = "{}"',
    ],
)
def test_a_reload_logs_settings_that_need_a_restart(
    processes: Processes, authority: Authority, setting: str
) -> None:
    server = processes.serve(CONFIG)
    reload_by_command(server)
    assert "only at the next start" not in server.logged()
    processes.write("kestrel.toml", CONFIG + setting.format(*authority.sign("mq.example")) + "\n")
    reload_by_command(server)
    assert "only at the next start" in server.logged()


def test_reloaded_codec_settings_apply_to_new_connections(
    processes: Processes,
) -> None:
    server = processes.serve(CONFIG)
    with server.connect() as early:
        early.put(b"work", b"12345", b"1")
        processes.write("kestrel.toml", CONFIG + "echoRequestedKey = false\nmaxRequestItemSize = 4\n")
        reload_by_command(server)
        with server.connect() as late:
            late.ask(b"get work/peek\r\n", b"VALUE work 0 5\r\n12345\r\nEND\r\n")
            late.send(set_(b"work", b"12345"))
            assert late.to_the_end().startswith(b"CLIENT_ERROR ")
        early.ask(b"get work/peek\r\n", b"VALUE work/peek 0 5\r\n12345\r\nEND\r\n")
        early.put(b"work", b"12345")


# A daemon.


class Daemon:
    """A server in the background, with its pidfile."""

    def __init__(self, processes: Processes, config: str = CONFIG) -> None:
        processes.write("kestrel.toml", config)
        self.pidfile = processes.folder / "kestrel.pid"
        self.log = processes.folder / "daemon.log"
        self.started = processes.run(
            *processes.twistd(
                *("--config", str(processes.folder / "kestrel.toml"), "--memcache", ANY_PORT),
                daemon=True,
                pidfile="kestrel.pid",
                logfile="daemon.log",
            )
        )
        self._processes = processes

    def serves(self) -> "Daemon":
        eventually(lambda: self.log.exists() and is_serving_in(self.log.read_text()), "the daemon serves")
        return self

    @property
    def pid(self) -> int:
        return int(self.pidfile.read_text())

    def is_gone(self) -> bool:
        return not self._processes.running()


def test_a_daemon_serves_in_the_background_until_a_signal(processes: Processes) -> None:
    daemon = Daemon(processes)
    assert (daemon.started.returncode, daemon.started.stderr) == (0, "")
    daemon.serves()
    assert daemon.pid in processes.running()
    with Client(port_in(daemon.log.read_text())) as client, Client(port_in(daemon.log.read_text())) as waiter:
        client.put(b"work", b"hello")
        waiter.send(b"get other/t=60000\r\n")
        eventually(lambda: client.stats().get("queue_other_waiters") == "1", "it waits")
        os.kill(daemon.pid, signal.SIGTERM)
        assert waiter.to_the_end() == b"END\r\n"
    eventually(daemon.is_gone, "the daemon ends")
    assert not daemon.pidfile.exists()
    assert "Traceback" not in daemon.log.read_text()
    assert (processes.folder / "queues" / "work").exists()


# Failed starts.


def refused(processes: Processes, config: str, *arguments: str, daemon: bool) -> tuple[int, str]:
    """Return the exit status and standard error of a server that does not start."""
    processes.write("refused.toml", config)
    ended = processes.run(
        *processes.twistd(
            *("--config", "refused.toml", *arguments),
            daemon=daemon,
            pidfile="refused.pid",
            logfile="refused.log" if daemon else None,
        )
    )
    log = processes.folder / "refused.log"
    told = ended.stdout + ended.stderr + (log.read_text() if log.exists() else "")
    assert "Traceback" not in told, told
    assert not (processes.folder / "refused.pid").exists()
    return ended.returncode, ended.stderr


def says(stderr: str, sentence: str) -> None:
    """Check that standard error has one clear sentence and nothing else."""
    assert re.search(sentence, stderr), stderr
    assert stderr.startswith("kestrel: ")
    assert stderr.count("\n") == 1, stderr


def is_refused_with(expected: int, status: int, daemon: bool) -> None:
    assert status == expected if not daemon else status != 0


@FOREGROUND_AND_DAEMON
def test_a_port_in_use_is_reported_in_one_sentence(processes: Processes, daemon: bool) -> None:
    port = processes.serve(CONFIG).port
    config = f'queuePath = "elsewhere"\nlistenAddress = "127.0.0.1"\nmemcacheListenPort = {port}\n'
    status, stderr = refused(processes, config, daemon=daemon)
    is_refused_with(EX_UNAVAILABLE, status, daemon)
    says(
        stderr,
        rf"cannot listen on .*{port}.*: Address already in use; change memcacheListenPort, or .* --memcache",
    )
    assert len(processes.running()) == 1


def test_failed_daemon_adds_one_sentence_to_existing_log(processes: Processes) -> None:
    daemon = Daemon(processes)
    eventually(lambda: daemon.log.exists() and "Try it: " in daemon.log.read_text(), "the daemon has logged its start")
    before = daemon.log.read_text()
    ended = processes.run(
        *processes.twistd(
            "--config", "kestrel.toml", "--memcache", ANY_PORT, daemon=True, pidfile="other.pid", logfile="daemon.log"
        )
    )
    assert ended.returncode == 1
    says(ended.stderr, rf"another server \(process {daemon.pid}\) owns the queue folder .*queues")
    sentence = ended.stderr.removeprefix("kestrel: ").rstrip("\n")
    (line,) = [line for line in daemon.log.read_text().removeprefix(before).splitlines() if "listening" not in line]
    assert line.endswith(f"[kestrel.server.maker#critical] The server cannot serve: {sentence}")


@pytest.mark.parametrize(
    ("config", "arguments", "expected", "sentence"),
    [
        (CONFIG, ["--memcache", "carrier-pigeon:3"], EX_CONFIG, "carrier-pigeon:3"),
        # Even root cannot make a folder below a file.
        ('queuePath = "a-file/queues"\n', [], EX_CANNOT_CREATE, "queue folder .*a-file/queues.*: Not a directory"),
        (f'{CONFIG}storage = "tapes:here"\n', [], EX_CONFIG, "tapes.*journal.*memory"),
        (CONFIG, ["--storage", "journal:here?reserve=bananas"], EX_CONFIG, "reserve.*bananas"),
    ],
)
@FOREGROUND_AND_DAEMON
def test_unusable_endpoint_or_storage_is_reported_briefly(
    processes: Processes, config: str, arguments: list[str], expected: int, sentence: str, daemon: bool
) -> None:
    processes.write("a-file", "")
    status, stderr = refused(processes, config, "--memcache", ANY_PORT, *arguments, daemon=daemon)
    is_refused_with(expected, status, daemon)
    says(stderr, sentence)
    assert processes.running() == []


@FOREGROUND_AND_DAEMON
def test_unwritable_log_is_reported_in_one_sentence(processes: Processes, daemon: bool) -> None:
    processes.write("a-file", "")
    config = CONFIG + '[logging]\nfile = "a-file/kestrel.log"\n'
    processes.write("refused.toml", config)
    pidfile = processes.folder / "refused.pid"
    ended = processes.run(
        *processes.twistd(*("--config", "refused.toml", "--memcache", ANY_PORT), daemon=daemon, pidfile="refused.pid")
    )
    is_refused_with(EX_CANNOT_CREATE, ended.returncode, daemon)
    says(ended.stderr, r"log .*a-file/kestrel\.log.*Not a directory")
    assert not pidfile.exists()
    assert processes.running() == []


@FOREGROUND_AND_DAEMON
def test_owned_queue_folder_is_reported_in_one_sentence(processes: Processes, daemon: bool) -> None:
    owner = processes.serve(CONFIG)
    status, stderr = refused(processes, CONFIG, "--memcache", ANY_PORT, daemon=daemon)
    is_refused_with(EX_TRY_AGAIN, status, daemon)
    says(stderr, rf"another server .*\b{owner.pid}\b.* queue")
    assert processes.running() == [owner.pid]
    with owner.connect() as client:
        client.put(b"work", b"hello")


WRONG = """
queuePath = "queues"
maxOpenTransactions = 0
memcacheListenPort = 70000
colour = "red"

[default]
syncJournal = "128 bananas"

[[queues]]
name = "a.b"

[[queues]]
name = "work"
maxItem = 3
"""
MISTAKES = ["maxOpenTransactions", "memcacheListenPort", "colour", "syncJournal", "a.b", "maxItem"]


@FOREGROUND_AND_DAEMON
def test_a_wrong_configuration_is_refused_with_all_its_mistakes(processes: Processes, daemon: bool) -> None:
    status, stderr = refused(processes, WRONG, "--memcache", ANY_PORT, daemon=daemon)
    assert status == EX_CONFIG
    first, *others = stderr.splitlines()
    assert first.startswith("kestrel: ") and "refused.toml" in first
    for mistake in MISTAKES:
        assert sum(mistake in line for line in others) == 1, (mistake, stderr)
    assert len(others) == len(MISTAKES)
    assert not (processes.folder / "queues").exists()
    assert processes.running() == []


# Other options of the command line.


def validated(processes: Processes, config: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run --validate on this configuration."""
    processes.write("checked.toml", config)
    return processes.run(*processes.twistd("--config", "checked.toml", *arguments, "--validate"))


def test_validate_accepts_a_valid_file_and_changes_nothing(processes: Processes) -> None:
    processes.write("good.toml", CONFIG + "[zookeeper]\nhost = 'localhost'\npathPrefix = '/services/kestrel'\n")
    before = sorted(processes.folder.iterdir())
    ended = processes.run(*processes.twistd("--config", "good.toml", "--validate"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "The configuration is valid.\n"
    assert sorted(processes.folder.iterdir()) == before


def test_validate_and_log_list_unused_settings(processes: Processes) -> None:
    config = CONFIG + "[default]\nmaxJournalSize = '1GiB'\nmaxItems = 5\nmaxMemorySize = '64MiB'\n"
    assert validated(processes, config, "--storage", "scroll:queues").stdout == (
        "The configuration is valid.\n"
        "It sets queuePath, which has no effect with this storage.\n"
        "It sets default.maxJournalSize, which has no effect with this storage.\n"
        "It sets default.maxMemorySize above 256KiB, which has no effect with this storage.\n"
    )
    assert validated(processes, config).stdout == "The configuration is valid.\n"
    server = processes.serve(config, "--storage", "scroll:queues")
    unused = "queuePath, default.maxJournalSize, default.maxMemorySize above 256KiB"
    assert f"These settings have no effect with this storage: {unused}\n" in server.logged()


MASKED = """
[[queues]]
name = "both"
[[aliases]]
name = "both"
destinationQueues = ["a"]
"""


def test_queue_masked_by_alias_is_reported(processes: Processes) -> None:
    ended = validated(processes, CONFIG + MASKED)
    assert ended.returncode == 0
    assert "Its alias both masks the queue of that name." in ended.stdout
    server = processes.serve(CONFIG + MASKED)
    assert server.logged().count("Alias both masks the queue of that name") == 1
    reload_by_command(server)
    assert server.logged().count("Alias both masks the queue of that name") == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--memcache", each) for each in ("foo:1", "22134", "tcp:99999", "tcp:1:interface=foo bar")),
        *(("--admin", each) for each in ("tcp:1:interface=999.1.1.1", "reloadtls:1:certKey=/nosuch/cert.pem")),
        *(("--trust", each) for each in ("text=tcp:70000", "text=ssl:1:privateKey=/nosuch/key.pem")),
        ("--storage", "nosuch:x"),
        ("--storage", "journal"),
    ],
)
def test_validate_checks_the_command_line(processes: Processes, option: str, value: str) -> None:
    ended = processes.run(*processes.twistd(option, value, "--validate"))
    assert ended.returncode == EX_CONFIG
    assert len(ended.stderr.splitlines()) == 1
    assert value.removeprefix("text=").partition(":")[0] in ended.stderr


@pytest.mark.parametrize("table", ["", "[admin]\n"])
def test_validate_checks_the_configured_addresses(processes: Processes, table: str) -> None:
    ended = validated(processes, f"{CONFIG}{table}listenAddress = 'foo bar'\n")
    assert (ended.returncode, ended.stdout) == (EX_CONFIG, "")
    assert "'foo bar' is not an address to listen on; " in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config", ""], "--config is empty: give a value, or omit it"),
        (["--storage="], "--storage is empty: give a value, or omit it"),
        (["extra"], "unexpected argument 'extra': kestrel takes only options; --help lists them"),
    ],
)
def test_a_command_line_mistake_is_explained(processes: Processes, arguments: list[str], sentence: str) -> None:
    ended = processes.run(*processes.twistd(*arguments, "--validate"))
    assert ended.returncode == 1
    assert sentence in ended.stdout + ended.stderr
    assert "valid" not in ended.stdout.replace("--validate", "")


def twistd_with_tac_file(processes: Processes, *options_of_twistd: str) -> list[str]:
    """Return the command that runs the shipped .tac file, with ports that the system picks."""
    tac = (Path(__file__).parents[2] / "tap-configs" / "kestrel.tac").read_text()
    options = '["--config", "kestrel.toml", "--memcache", "tcp:0:interface=127.0.0.1"]'
    processes.write("kestrel.tac", tac.replace('["--config", "tap-configs/development.toml"]', options))
    no_fixed_ports = "textListenPort = false\nthriftListenPort = false\n[admin]\nhttpPort = false\n"
    processes.write("kestrel.toml", CONFIG + no_fixed_ports)
    start = "from twisted.scripts.twistd import run; run()"
    return [sys.executable, "-c", start, *options_of_twistd, "--python", "kestrel.tac"]


def test_the_tac_file_serves_reloads_and_stops_in_order(processes: Processes) -> None:
    log = processes.folder / "out.log"
    command = twistd_with_tac_file(processes, "--nodaemon", "--pidfile=")
    with (
        log.open("wb") as out,
        Child[bytes](command, cwd=processes.folder, env=processes.environment(), stdout=out, stderr=out) as process,
    ):
        try:
            eventually(lambda: is_serving_in(log.read_text()), "the server serves")
            process.send_signal(signal.SIGHUP)
            eventually(lambda: "reloaded" in log.read_text(), "it reloads")
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()


def test_daemon_of_a_tac_file_logs_to_twistds_logfile(processes: Processes) -> None:
    ended = processes.run(*twistd_with_tac_file(processes, "--pidfile=tac.pid", "--logfile=tac.log"))
    assert (ended.returncode, ended.stderr) == (0, "")
    log = processes.folder / "tac.log"
    eventually(lambda: log.exists() and is_serving_in(log.read_text()), "the daemon serves")
    os.kill(int((processes.folder / "tac.pid").read_text()), signal.SIGTERM)
    eventually(lambda: "Server Shut Down" in log.read_text(), "the daemon ends")


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("tap-configs/*.toml")), ids=lambda p: p.name)
def test_the_shipped_configurations_are_valid(processes: Processes, authority: Authority, path: Path) -> None:
    # `[tls]` names files, which --validate reads.
    cert_file, key_file = authority.sign("mq.example")
    files = {"server.pem": cert_file, "server.key": key_file, "clients.pem": authority.ca_file}
    config = re.sub(r'"/etc/kestrel/([\w.]+)"', lambda name: f'"{files[name[1]]}"', path.read_text())
    ended = validated(processes, config)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "no effect" not in ended.stdout


@pytest.mark.parametrize(("file", "is_there"), [("kestrel.log", True), ("nowhere/kestrel.log", False)])
def test_validate_says_when_the_folder_of_the_log_is_missing(processes: Processes, file: str, is_there: bool) -> None:
    ended = validated(processes, f'{CONFIG}[logging]\nfile = "{file}"\n')
    missing = (
        "" if is_there else f"The folder of its log, {processes.folder}/nowhere, does not exist: create it first.\n"
    )
    assert (ended.returncode, ended.stdout) == (0, f"The configuration is valid.\n{missing}")


@pytest.mark.parametrize(
    ("items", "delayed", "told"),
    [
        (0, 0, "0 queues with 0 items"),
        (1, 0, "1 queue with 1 item"),
        (1, 2, "1 queue with 1 item, and 2 delayed,"),
    ],
)
def test_the_start_logs_the_number_of_queues_and_items(
    processes: Processes, items: int, delayed: int, told: str
) -> None:
    server = processes.serve(CONFIG)
    with server.connect() as client:
        client.put(b"work", *[b"a"] * items)
        client.put(b"work/delay=3600000", *[b"b"] * delayed)
    server.stop()
    assert f"serves {told} of journal:queues, loaded in " in processes.serve(CONFIG).logged()


def test_the_start_logs_the_storage_without_its_options(processes: Processes) -> None:
    logged = processes.serve("", "--storage", "scroll:elsewhere?reserve=1MiB").logged()
    assert "serves 0 queues with 0 items of scroll:elsewhere, loaded in " in logged


def test_the_start_and_the_stats_say_which_build_serves(processes: Processes) -> None:
    server = processes.serve(CONFIG)
    with server.connect() as client:
        assert client.stats()["build"] == BUILD
    told = {"compiled": "compiled", "pure": "pure Python"}[BUILD]
    assert f"kestrel {__version__} ({told}) serves " in server.logged()
    assert "make compiled" not in server.logged()


def test_start_warns_of_outdated_extension(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KESTREL_PURE", raising=False)
    package = processes.folder / "kestrel"
    shutil.copytree(ROOT / "kestrel", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (package / "compiled.json").write_text('{"kestrel.item": "the digest of another source"}')
    server = processes.serve(CONFIG)
    why = "kestrel.item has changed since the extension was built"
    assert f"Running as pure Python, which is slower: {why}. To build the extension: make compiled\n" in server.logged()
    assert f"kestrel {__version__} (pure Python) serves " in server.logged()


def test_help_mentions_every_option_and_storage(processes: Processes) -> None:
    ended = processes.run(*processes.twistd("--help"))
    assert ended.returncode == 0
    for option in ("config", "memcache", "text", "thrift", "admin", "storage", "validate", "version", "help"):
        assert f"--{option}" in ended.stdout
    assert [name for name in FACTORIES if f" {name}:" not in ended.stdout] == []


def test_twistd_lists_the_server_among_its_commands(processes: Processes) -> None:
    ended = processes.run(processes.twistd()[0], "--help")
    assert re.search(r"^ +kestrel +\S", ended.stdout, re.MULTILINE)


def test_version_is_that_of_the_package(processes: Processes) -> None:
    ended = processes.run(*processes.twistd("--version"))
    assert (ended.returncode, ended.stdout) == (0, f"kestrel {__version__}\n")
    with processes.serve(CONFIG).connect() as client:
        client.ask(b"version\r\n", f"VERSION {__version__}\r\n".encode())


# Storage.


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        (CONFIG + 'storage = "memory:"\n', []),
        (CONFIG, ["--storage", "memory:"]),
        (CONFIG + 'storage = "journal:in-the-file"\n', ["--storage", "memory:"]),
    ],
    ids=["in the file", "on the command line", "on the command line against the file"],
)
def test_memory_storage_leaves_nothing_on_the_disk(processes: Processes, config: str, arguments: list[str]) -> None:
    server = processes.serve(config, *arguments)
    with server.connect() as client:
        client.put(b"work", b"1", b"2")
        assert client.get(b"work") == b"1"
    server.stop()
    assert not (processes.folder / "queues").exists()
    assert not (processes.folder / "in-the-file").exists()
    with processes.serve(config, *arguments).connect() as client:
        assert client.get(b"work") is None


@pytest.mark.parametrize("arguments", [["--storage", "journal:elsewhere?reserve=1MiB"], []])
def test_a_storage_description_says_where_the_journal_is(processes: Processes, arguments: list[str]) -> None:
    config = CONFIG if arguments else CONFIG + 'storage = "journal:elsewhere?reserve=1MiB"\n'
    with processes.serve(config, *arguments).connect() as client:
        client.put(b"work", b"hello")
    assert (processes.folder / "elsewhere" / "work").exists()
    assert not (processes.folder / "queues").exists()


# Killed servers.


def test_after_kill_9_every_acknowledged_item_is_there_in_order(processes: Processes) -> None:
    sizes = [0, 1, 17, 100, 1000, 5000, 70_000]
    items = [os.urandom(sizes[index % len(sizes)]) for index in range(3000)]
    server = processes.serve(CONFIG)
    with server.connect() as client:
        for begin in range(0, len(items), 100):
            client.put(b"work", *items[begin : begin + 100])
        server.kill()
    with processes.serve(CONFIG).connect() as client:
        assert client.stats()["queue_work_items"] == "3000"
        for item in items:
            assert client.get(b"work") == item
        assert client.get(b"work") is None


def test_kill_9_returns_open_reads_in_order(
    processes: Processes,
) -> None:
    server = processes.serve(CONFIG)
    with server.connect() as client, server.connect() as other:
        client.put(b"work", *(b"%d" % number for number in range(10)))
        assert [client.get(b"work") for _ in range(2)] == [b"0", b"1"]
        assert client.get(b"work/open") == b"2"
        assert other.get(b"work/open") == b"3"
        assert client.get(b"work/open") == b"4"
        client.ask(b"get work/close\r\n", b"END\r\n")  # of 2
        server.kill()
    with processes.serve(CONFIG).connect() as client:
        rest = [client.get(b"work") for _ in range(9)]
    assert rest == [b"3", b"4", b"5", b"6", b"7", b"8", b"9", None, None]


def test_the_pidfile_of_a_killed_server_is_replaced(processes: Processes) -> None:
    first = processes.start(CONFIG, pidfile="kestrel.pid").serves()
    first.kill()
    assert (processes.folder / "kestrel.pid").exists()
    processes.start(CONFIG, pidfile="kestrel.pid").serves().stop()
    assert not (processes.folder / "kestrel.pid").exists()
