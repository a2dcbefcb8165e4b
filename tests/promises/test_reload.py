"""The configuration of a running server: `reload` changes it, `dump_config` shows it."""

from __future__ import annotations

import errno
import os
import re
from contextlib import closing
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent

from kestrel.config.load import ConfigError, loads
from kestrel.config.model import Config
from kestrel.testing.server import MemoryClient, MemoryServer
from tests.config_tables import alias, queue
from tests.memcache_text import END, NOT_STORED, STORED, items, put, set_, stat, value
from tests.server.running import Processes, eventually

RELOADED = b"Reloaded config.\r\n"

SETTINGS = {
    "maxItems",
    "maxSize",
    "maxItemSize",
    "maxAge",
    "defaultJournalSize",
    "maxMemorySize",
    "maxJournalSize",
    "minJournalCompactDelay",
    "discardOldWhenFull",
    "keepJournal",
    "syncJournal",
    "expireToQueue",
    "maxExpireSweep",
    "maxRedeliveries",
    "errorQueue",
    "fanoutOnly",
    "maxQueueAge",
    "enableTrace",
    "disableAggressiveRewrites",
    "openTransactionTimeout",
    "whiteListClientIdForEnqueue",
    "whiteListClientIdForDequeue",
}
"""All settings of a queue."""


def reload(server: MemoryServer, text: str) -> None:
    """Replace the content of the configuration file, and reload it as a client."""
    server.control.new_config = loads(text)
    assert server.connect().ask(b"reload\r\n") == RELOADED


def hold_reload(server: MemoryServer) -> Deferred[None]:
    """Delay the reading of the file until the returned Deferred fires."""
    read: Deferred[None] = Deferred()
    apply = server.control.reload
    server.control.reload = lambda: read.addCallback(lambda _: apply())
    return read


# reload.


def test_reload_applies_to_existing_queues_at_once() -> None:
    server = MemoryServer(config=loads("[default]\nmaxItems = 2"))
    client = server.connect()
    assert client.ask(set_(b"work", b"1") + set_(b"work", b"2") + set_(b"work", b"3")) == STORED * 2 + NOT_STORED
    reload(server, "[default]\nmaxItems = 3\n[[queues]]\nname = 'small'\nmaxItemSize = 3")
    assert client.ask(set_(b"work", b"3") + set_(b"work", b"4")) == STORED + NOT_STORED, "a queue that exists"
    assert client.ask(b"".join(set_(b"new", b"%d" % n) for n in range(4))) == STORED * 3 + NOT_STORED, (
        "a queue created later"
    )
    assert client.ask(set_(b"small", b"four") + set_(b"small", b"two")) == NOT_STORED + STORED
    reload(server, "[default]\nmaxItems = 1")
    assert client.ask(set_(b"work", b"4")) == NOT_STORED
    assert stat(client, b"work", "items") == "3", "existing items stay"
    reload(server, "")
    assert client.ask(set_(b"work", b"4") + set_(b"small", b"four")) == STORED * 2
    assert items(client, b"work") == [b"1", b"2", b"3", b"4"]


def test_reload_applies_to_existing_connections() -> None:
    server = MemoryServer(config=loads("maxOpenTransactions = 1"))
    client = server.connect()
    assert client.ask(b"".join(set_(b"work", b"%d" % n) for n in range(3))) == STORED * 3
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"0")
    reload(server, "maxOpenTransactions = 2")
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"1")
    assert client.ask(b"get work/open\r\n") == b"ERROR\r\n"


def test_reload_starts_and_stops_the_expiration_timer() -> None:
    server = MemoryServer(config=Config())
    client = server.connect()
    assert client.ask(set_(b"work", b"old", expiry=1)) == STORED
    server.advance(60)
    assert stat(client, b"work", "items") == "1"
    reload(server, 'expirationTimerFrequency = "10s"')
    server.advance(10)
    assert stat(client, b"work", "items") == "0"
    assert client.ask(set_(b"work", b"old", expiry=1)) == STORED
    reload(server, "")
    server.advance(60)
    assert stat(client, b"work", "items") == "1"


def test_reload_of_grace_period_applies_to_next_status_change() -> None:
    server = MemoryServer(config=Config())
    reload(server, 'statusChangeGracePeriod = "10s"')
    client = server.connect()
    assert client.ask(b"status readonly\r\n" + set_(b"work", b"1")) == END + STORED
    server.advance(10)
    assert client.ask(set_(b"work", b"2")).startswith(b"SERVER_ERROR ")


def test_reload_of_default_status_changes_no_status() -> None:
    server = MemoryServer(config=Config())
    reload(server, 'defaultStatus = "Quiescent"')
    assert server.connect().ask(b"status\r\n" + set_(b"work", b"1")) == b"UP\r\n" + STORED


def test_reload_is_answered_in_order() -> None:
    server = MemoryServer(config=Config())
    server.control.new_config = loads("[default]\nmaxItems = 1")
    read = hold_reload(server)
    client = server.connect()
    before = set_(b"work", b"1") + set_(b"work", b"2")
    assert client.ask(before + b"reload\r\n" + set_(b"work", b"3") + b"get work\r\n" * 2) == STORED * 2
    other = server.connect()
    assert other.ask(set_(b"other", b"1") + set_(b"other", b"2")) == STORED * 2, (
        "other clients are served with the old settings"
    )
    read.callback(None)
    assert client.take() == RELOADED + NOT_STORED + value(b"work", b"1") + value(b"work", b"2")
    assert other.ask(set_(b"other", b"3")) == NOT_STORED


def test_reload_completes_after_its_client_disconnected() -> None:
    server = MemoryServer(config=Config())
    server.control.new_config = loads("[default]\nmaxItems = 1")
    read = hold_reload(server)
    client = server.connect()
    assert client.ask(b"reload\r\n") == b""
    client.disconnect()
    server.settle()
    read.callback(None)
    assert server.connect().ask(set_(b"work", b"1") + set_(b"work", b"2")) == STORED + NOT_STORED


def test_failed_reload_is_an_error_and_keeps_old_settings() -> None:
    server = MemoryServer(config=loads("[default]\nmaxItems = 1"))
    server.control.reload_error = ConfigError("kestrel.toml", "maxItem: unknown setting", "colour: unknown setting")
    client = server.connect()
    first, rest = client.ask(b"reload\r\n" + set_(b"work", b"1") + set_(b"work", b"2")).split(b"\r\n", 1)
    assert re.fullmatch(rb"SERVER_ERROR .*maxItem: unknown setting.*colour: unknown setting.*", first)
    assert rest == STORED + NOT_STORED
    assert not client.is_closed


def test_other_clients_are_served_while_file_is_read(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        server = processes.serve('queuePath = "queues"\n')
        file = tmp_path / "kestrel.toml"
        file.unlink()
        os.mkfifo(file)  # reading it blocks until the test writes to it

        with server.connect() as client, server.connect() as other:
            client.send(b"reload\r\n" + set_(b"work", b"2"))
            writers: list[int] = []

            def is_being_read() -> bool:
                try:
                    writers.append(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
                except OSError as error:
                    assert error.errno == errno.ENXIO
                return bool(writers)

            eventually(is_being_read, "the file is read")
            with closing(os.fdopen(writers[0], "w")) as writer:
                other.put(b"work", b"1")
                assert other.get(b"work/peek") == b"1"
                writer.write('queuePath = "queues"\n[default]\nmaxItems = 1\n')
            client.expect(RELOADED + NOT_STORED)


@pytest.mark.parametrize(("before", "after"), [("true", "false"), ("false", "true")])
def test_reload_of_keep_journal_is_refused_for_live_queue(before: str, after: str, tmp_path: Path) -> None:
    def config_text(keep_journal: str, rest: str = "") -> str:
        return f"[[queues]]\nname = 'work'\nkeepJournal = {keep_journal}\n{rest}"

    server = MemoryServer(config=loads(config_text(before)), folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"work", b"1")
    with capturedLogs() as events:
        reload(server, config_text(after, "maxItems = 2"))
    warnings = [formatEvent(event) for event in events if event["log_level"] >= LogLevel.warn]
    assert [line for line in warnings if "keepJournal" in line and "work" in line]
    assert client.ask(set_(b"work", b"2") + set_(b"work", b"3")) == STORED + NOT_STORED, "maxItems has changed"
    assert (tmp_path / "queues" / "work").exists() is (before == "true")
    server.crash(loads(config_text("true")))
    assert items(server.connect(), b"work") == ([b"1", b"2"] if before == "true" else [])


def test_recreated_queue_uses_reloaded_keep_journal(tmp_path: Path) -> None:
    server = MemoryServer(config=Config(), folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"work", b"1")
    reload(server, "[default]\nkeepJournal = false")
    assert client.ask(b"delete work\r\n" + set_(b"work", b"2")) == b"DELETED\r\n" + STORED
    assert not (tmp_path / "queues" / "work").exists()


def test_reload_changes_aliases() -> None:
    server = MemoryServer(config=Config())
    client = server.connect()
    put(client, b"all", b"0")
    reload(server, "[[aliases]]\nname = 'all'\ndestinationQueues = ['a', 'b']")
    assert client.ask(set_(b"all", b"1") + b"get all\r\n") == STORED + END
    assert (items(client, b"a"), items(client, b"b")) == ([b"1"], [b"1"])
    reload(server, "[[aliases]]\nname = 'all'\ndestinationQueues = ['b', 'c']")
    put(client, b"all", b"2")
    assert (items(client, b"a"), items(client, b"b"), items(client, b"c")) == ([], [b"2"], [b"2"])
    reload(server, "")
    put(client, b"all", b"3")
    assert (items(client, b"b"), items(client, b"c")) == ([], [])
    assert items(client, b"all") == [b"0", b"3"], "the queue of that name can be reached again"


# dump_config.

Shown = dict[bytes, dict[str, str]]

BLOCK = re.compile(rb"queue '([^']*)' \{\r\n((?:  [A-Za-z]+=[^\r\n]*\r\n)*)\}\r\n")


def dump_config(client: MemoryClient, *names: bytes) -> Shown:
    """Return the blocks of the reply by name, after checking its form."""
    reply = client.ask(b" ".join([b"dump_config", *names]) + b"\r\n")
    shown: Shown = {}
    position = 0
    while (block := BLOCK.match(reply, position)) is not None:
        position = block.end()
        assert block[1] not in shown, "no name is shown twice"
        pairs = [line.strip().partition("=") for line in block[2].decode().splitlines()]
        shown[block[1]] = {key: shown_value for key, _, shown_value in pairs}
        assert len(shown[block[1]]) == len(pairs), "no setting is shown twice"
    assert reply[position:] == END
    return shown


INHERITING = """
[default]
maxAge = "1d"
maxItems = 10_000
syncJournal = "100ms"

[[queues]]
name = "news"
maxItems = 1000
fanoutOnly = true
expireToQueue = "old"

[[queues]]
name = "news+archive"
maxAge = "none"
maxSize = "2GiB"
discardOldWhenFull = true
whiteListClientIdForDequeue = ["anna", "bob"]
"""


def test_dump_config_shows_blocks_of_keys_and_values() -> None:
    client = MemoryServer(config=loads("[[queues]]\nname = 'work'\nmaxItems = 7")).connect()
    reply = client.ask(b"dump_config work\r\nversion\r\n")
    assert reply.startswith(b"queue 'work' {\r\n  ")
    assert reply.endswith(b"\r\n}\r\nEND\r\nVERSION 1.2.3\r\n")
    lines = reply.removesuffix(b"VERSION 1.2.3\r\n").split(b"\r\n")
    assert lines[-1] == b""
    assert lines[-3:-1] == [b"}", b"END"]
    assert all(re.fullmatch(rb"  [A-Za-z]+=\S.*", line) for line in lines[1:-3])
    assert b"  maxItems=7" in lines
    assert list(dump_config(client, b"b", b"work", b"a")) == [b"b", b"work", b"a"], "in the order of the request"
    assert client.ask(b"DUMP_CONFIG work\r\n") + b"VERSION 1.2.3\r\n" == reply


def test_dump_config_shows_every_setting_with_inherited_values() -> None:
    client = MemoryServer(config=loads(INHERITING)).connect()
    names = [b"jobs", b"news", b"news+mail", b"news+archive"]
    assert client.ask(b"".join(set_(name, b"1") for name in names)) == STORED * 4
    shown = dump_config(client, *names)
    assert all(set(settings) == SETTINGS for settings in shown.values())
    inherited = {
        key: [shown[name][key] for name in names]
        for key in ("maxItems", "syncJournal", "fanoutOnly", "expireToQueue", "maxSize", "discardOldWhenFull")
    }
    assert inherited == {
        "maxItems": ["10000", "1000", "1000", "1000"],
        "syncJournal": ["100ms"] * 4,
        "fanoutOnly": ["false", "true", "false", "false"],
        "expireToQueue": ["none", "old", "old", "old"],
        "maxSize": ["none", "none", "none", "2GiB"],
        "discardOldWhenFull": ["false", "false", "false", "true"],
    }
    assert [shown[name]["maxAge"] for name in names] == ["1d", "1d", "1d", "none"]
    assert shown[b"news+archive"]["whiteListClientIdForDequeue"] == "anna,bob"
    defaults = dump_config(MemoryServer().connect(), b"work")[b"work"]
    assert (defaults["syncJournal"], defaults["defaultJournalSize"], defaults["maxAge"]) == ("never", "16MiB", "none")


def test_dump_config_shows_keep_journal_in_effect() -> None:
    server = MemoryServer(config=loads("[default]\nkeepJournal = false"))
    client = server.connect()
    put(client, b"work", b"1")
    reload(server, "[default]\nkeepJournal = true\nmaxItems = 5")
    shown = dump_config(client, b"work", b"new")
    assert (shown[b"work"]["keepJournal"], shown[b"work"]["maxItems"]) == ("false", "5"), "keepJournal has not changed"
    assert shown[b"new"]["keepJournal"] == "true"


def test_dump_config_of_missing_queue_shows_settings_and_creates_nothing(tmp_path: Path) -> None:
    server = MemoryServer(config=loads(INHERITING), folder=tmp_path / "queues")
    client = server.connect()
    shown = dump_config(client, b"jobs", b"news+mail")
    assert set(shown[b"jobs"]) == set(shown[b"news+mail"]) == SETTINGS
    assert (shown[b"jobs"]["maxItems"], shown[b"news+mail"]["maxItems"]) == ("10000", "1000")
    assert b"queue_jobs_" not in client.ask(b"stats\r\n")
    assert b"STAT queue_creates 0\r\n" in client.ask(b"stats\r\n")
    assert sorted(path.name for path in (tmp_path / "queues").iterdir()) == [".kestrel"]
    put(client, b"news", b"1")
    assert "children" not in client.ask(b"dump_stats news\r\n").decode(), "dump_config did not create the child"
    assert items(client, b"news+mail") == []


def test_dump_config_of_alias_shows_its_destinations() -> None:
    tables = alias("all", "a", "both") + alias("both", "b", "c+d") + queue("all", "maxItems = 7")
    server = MemoryServer(config=loads(tables))
    shown = dump_config(server.connect(), b"all", b"both")
    assert shown == {b"all": {"destinationQueues": "a,both"}, b"both": {"destinationQueues": "b,c+d"}}
    reload(server, "[[aliases]]\nname = 'all'\ndestinationQueues = ['z']")
    shown = dump_config(server.connect(), b"all", b"both")
    assert shown[b"all"] == {"destinationQueues": "z"}
    assert set(shown[b"both"]) == SETTINGS, "it is no longer an alias"


def test_dump_config_without_names_lists_all_queues_and_aliases(tmp_path: Path) -> None:
    aliases = "[[aliases]]\nname = 'all'\ndestinationQueues = ['work', 'unborn']\n"
    server = MemoryServer(folder=tmp_path / "queues")
    client = server.connect()
    assert dump_config(client) == {}
    assert client.ask(set_(b"work", b"1") + set_(b"all", b"1") + set_(b"news+child", b"1")) == STORED * 3
    assert set(dump_config(client)) == {b"work", b"all", b"news+child"}
    reload(server, INHERITING + aliases)
    expected = {b"work", b"all", b"news", b"news+child", b"news+archive"}
    shown = dump_config(client)
    assert set(shown) == expected, "existing and configured names"
    assert set(shown[b"all"]) == {"destinationQueues"}, "the alias, which masks the queue"
    assert set(shown[b"news"]) == set(shown[b"work"]) == SETTINGS
    server.restart()
    assert set(dump_config(server.connect())) == expected
    server.connect().ask(b"delete work\r\n")
    assert set(dump_config(server.connect())) == expected - {b"work"}
