"""kestrel-convert-config: conversion of Kestrel's configurations, with a report of each omission."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest

from kestrel.config.load import load, loads
from kestrel.config.model import Config
from kestrel.config.resolved import ResolvedConfig
from kestrel.config.units import GIB, MIB
from kestrel.disk.files import Disk
from kestrel.tools.convert_config.command import LARGEST_BYTES, convert_text, main
from kestrel.tools.convert_config.config_converter import ConfigRemark
from kestrel.tools.convert_config.scala_parser import DEEPEST
from kestrel.tools.tool_runner import ToolFailed

WHOLE = """
import com.twitter.conversions.storage._
import net.lag.kestrel.config._

/* The one of the
   /* second */ rack. */
new KestrelConfig {
  listenAddress = "10.0.0.7"
  memcacheListenPort = 22134
  textListenPort = None; thriftListenPort = Some(2230)
  connectionBacklog = Some(500)
  queuePath = "/srv/queues"
  statusFile = "/srv/status"   // survives a boot
  defaultStatus = Quiescent
  statusChangeGracePeriod = 10.seconds
  clientTimeout = Some(2.hours)
  expirationTimerFrequency = 500 milliseconds
  maxOpenTransactions = 100
  enableSessionTrace = true
  connectionLimitRefuseWrites = 9000
  connectionLimitRefuseReads = None
  beFactoryClass = None

  default.defaultJournalSize = 16.megabytes
  default.maxMemorySize = 64.megabytes
  default.maxJournalSize = 1.gigabyte
  default.syncJournal = Duration.MaxValue
  default.minJournalCompactDelay = None
  default.maxSize = Long.MaxValue.bytes

  queues = new QueueBuilder {
    name = "mail"
    maxItems = 1500000
    maxItemSize = 512.kilobytes
    maxAge = 1.day
    expireToQueue = "mail_late"
    maxExpireSweep = Int.MaxValue
    discardOldWhenFull = true
    syncJournal = 0.seconds
    whiteListClientIdForEnqueue = "front"
  } :: new QueueBuilder {
    name = "mail+audit"; keepJournal = false
    fanoutOnly = false; maxQueueAge = 90.minutes
    openTransactionTimeout = Some(30.seconds)
    enableTrace = true
    disableAggressiveRewrites = true
  } :: Nil

  aliases = List(
    new AliasBuilder {
      name = "all"
      destinationQueues = List("mail", "news")
    },
    new AliasBuilder { name = "one"; destinationQueues = "mail" :: Nil }
  )

  zookeeper = new ZooKeeperBuilder {
    host = "zk1"
    port = 2182
    pathPrefix = "/services/kestrel"
    sessionTimeout = 20.seconds
    credentials = Some(("rack", "s3cret"))
    acl = EveryoneReadCreatorAllACL
    clientInitializer = None
  }

  loggers = new LoggerConfig {
    level = Level.WARNING
    handlers = new FileHandlerConfig {
      filename = "/var/log/kestrel.log"
      roll = Policy.MaxSize(100.megabytes)
      rotateCount = 7
      append = true
    }
  }
}
"""

LOG = "loggers = new LoggerConfig {{ handlers = new FileHandlerConfig {{\n {} }} }}"
TWIN = 'new QueueBuilder { name = "a" }'


def convert(body: str) -> tuple[Config, list[ConfigRemark]]:
    """Convert the body of a configuration, and return the result with its remarks."""
    text, taken = convert_text(f"new KestrelConfig {{\n{body}\n}}\n", "a.scala")
    return loads(text), taken.remarks


def left_out(body: str) -> list[tuple[int, str]]:
    """Return the line in the body and the source of each omission."""
    return [(remark.first_line - 1, remark.source) for remark in convert(body)[1] if remark.is_left_out]


def test_whole_configuration_is_converted() -> None:
    text, taken = convert_text(WHOLE, "a.scala")
    assert taken.remarks == []
    config = loads(text)
    assert (config.listen_address, config.memcache_listen_port, config.text_listen_port) == ("10.0.0.7", 22134, None)
    assert (config.thrift_listen_port, config.connection_backlog, config.default_status) == (2230, 500, "Quiescent")
    assert (config.queue_path, config.status_file) == ("/srv/queues", "/srv/status")
    assert (config.client_timeout_ms, config.expiration_timer_frequency_ms) == (7_200_000, 500)
    assert (config.status_change_grace_period_ms, config.max_open_transactions) == (10_000, 100)
    assert (config.connection_limit_refuse_writes, config.connection_limit_refuse_reads) == (9000, None)
    assert config.enable_session_trace
    queues = ResolvedConfig(config)
    other, mail, audit = map(queues.settings_for, (b"other", b"mail", b"mail+audit"))
    assert (other.max_memory_size_bytes, other.max_journal_size_bytes, other.sync_journal_ms) == (64 * MIB, GIB, None)
    assert (other.min_journal_compact_delay_ms, other.max_size_bytes) == (None, None)
    assert (mail.max_items, mail.max_item_size_bytes, mail.max_age_ms) == (1_500_000, MIB // 2, 86_400_000)
    assert (mail.expire_to_queue, mail.max_expire_sweep, mail.sync_journal_ms) == (b"mail_late", None, 0)
    assert mail.discard_old_when_full and mail.keep_journal
    assert mail.white_list_client_id_for_enqueue == (b"front",)
    assert (audit.keep_journal, audit.max_queue_age_ms, audit.open_transaction_timeout_ms) == (False, 5_400_000, 30_000)
    assert audit.max_items == 1_500_000 and audit.enable_trace and audit.disable_aggressive_rewrites
    assert [alias.destination_queues for alias in config.aliases.values()] == [(b"mail", b"news"), (b"mail",)]
    zookeeper = config.zookeeper
    assert zookeeper is not None
    assert (zookeeper.host, zookeeper.port, zookeeper.path_prefix) == ("zk1", 2182, "/services/kestrel")
    assert (zookeeper.session_timeout_ms, zookeeper.credentials) == (20_000, "rack:s3cret")
    assert zookeeper.acl == "everyone-read-creator-all"
    log = config.logging
    assert (log.level, log.file) == ("warn", "/var/log/kestrel.log")
    assert (log.rotate_size_bytes, log.rotate_count) == (100 * MIB, 7)


def test_defaults_of_kestrel_are_written() -> None:
    config, remarks = convert("")
    assert (config.queue_path, config.status_file, config.admin.http_port) == ("/tmp", "/tmp/.kestrel-status", None)
    assert remarks == []


def test_unreadable_queue_path_is_not_replaced_by_the_default() -> None:
    assert convert('queuePath = base + "/queues"')[0].queue_path != "/tmp"


@pytest.mark.parametrize(
    ("body", "line", "source"),
    [
        ('val base = System.getenv("BASE")', 1, 'val base = System.getenv("BASE")'),
        ('queuePath = base + "/queues"', 1, 'queuePath = base + "/queues"'),
        ("default.maxItems = limit", 1, "default.maxItems = limit"),
        ("default.maxAge = 60", 1, "default.maxAge = 60"),
        ("maxOpenTransactions = 0100", 1, "maxOpenTransactions = 0100"),
        ("default.maxSize = Long.MaxValue.kilobytes", 1, "default.maxSize = Long.MaxValue.kilobytes"),
        (r'default.expireToQueue = """a\u0062"""', 1, r'default.expireToQueue = """a\u0062"""'),
        ("default.maxAge = 5.microseconds", 1, "default.maxAge = 5.microseconds"),
        ("default.maxAge = 5.fortnights", 1, "default.maxAge = 5.fortnights"),
        ("default.maxMemorySize = Long.MaxValue.bytes", 1, "default.maxMemorySize = Long.MaxValue.bytes"),
        ("default.maxJournalOverflow = 10", 1, "default.maxJournalOverflow = 10"),
        ("default.defaultReader.maxItems = 10", 1, "default.defaultReader.maxItems = 10"),
        ('default.expireToQueue = "none"', 1, 'default.expireToQueue = "none"'),
        ("memcacheListenPort = 70000", 1, "memcacheListenPort = 70000"),
        ("admin.telnetPort = 2224", 1, "admin.telnetPort = 2224"),
        ("defaultStatus = Down", 1, "defaultStatus = Down"),
        ('beFactoryClass = Some("a.B")', 1, 'beFactoryClass = Some("a.B")'),
        ("1.5.seconds", 1, "1.5.seconds"),
        ("zookeeper = Some(mine)", 1, "zookeeper = Some(mine)"),
        ('zookeeper = new ZooKeeperBuilder { host = "h" }', 1, "zookeeper: new ZooKeeperBuilder"),
        ("queues = makeThem(3) ::: Nil", 1, "queues: this expression"),
        ("queues = new QueueBuilder {\n maxItems = 3\n}", 1, "queues: new QueueBuilder"),
        ('queues = List(new QueueBuilder with Large {\n name = "a"\n})', 1, "new QueueBuilder with Large"),
        ('queues = new QueueBuilder {\n name = "a"\n maxItems = n\n}', 3, "maxItems = n"),
        ('loggers = new LoggerConfig {\n node = "stats"\n}', 1, "loggers: new LoggerConfig"),
        ("loggers = new LoggerConfig {\n level = Level.OFF\n}", 2, "level = Level.OFF"),
        (LOG.format("roll = Policy.Daily"), 2, "roll = Policy.Daily"),
        (LOG.format("formatter = new ExceptionJsonFormatterConfig"), 2, "formatter = new ExceptionJsonFormatterConfig"),
        ("if (a) {\n  maxOpenTransactions = 1\n} else {\n}", 1, "if (a) { maxOpenTransactions = 1 } else { }"),
    ],
)  # fmt: skip
def test_omission_is_reported_with_its_line(body: str, line: int, source: str) -> None:
    assert left_out(f"{body}\nmaxOpenTransactions = 7") == [(line, source)]
    assert convert(f"{body}\nmaxOpenTransactions = 7")[0].max_open_transactions == 7


def test_statistics_over_time_need_no_setting() -> None:
    stats = "admin.statsNodes = new StatsConfig {{\n  reporters = {}\n}}"
    ((remark),) = convert(stats.format("new TimeSeriesCollectorConfig"))[1]
    assert (remark.first_line, remark.is_left_out) == (3, False)
    assert left_out(stats.format("new JsonStatsLoggerConfig :: new TimeSeriesCollectorConfig"))
    assert left_out(stats.format("new Riemann(period = 1.second)"))


def test_admin_port_listens_on_localhost() -> None:
    config, (remark,) = convert("admin.httpPort = 2223")
    assert (config.admin.http_port, config.admin.listen_address) == (2223, "127.0.0.1")
    assert "listenAddress" in remark.reason and not remark.is_left_out


def test_last_of_two_values_counts() -> None:
    config, (remark,) = convert("maxOpenTransactions = 5\nmaxOpenTransactions = 6")
    assert config.max_open_transactions == 6
    assert (remark.first_line, remark.is_left_out) == (2, False)


def test_largest_integer_is_kept_as_a_limit() -> None:
    config, remarks = convert("default.maxSize = Int.MaxValue.bytes\ndefault.maxAge = Int.MaxValue.milliseconds")
    settings = ResolvedConfig(config).settings_for(b"any")
    assert (settings.max_size_bytes, settings.max_age_ms) == (2**31 - 1, 2**31 - 1)
    assert remarks == []


def test_new_admin_service_replaces_the_previous_one() -> None:
    config, _ = convert("admin.httpPort = 2223\nadmin = new AdminServiceConfig { }")
    assert config.admin.http_port is None


def test_passwords_are_not_shown() -> None:
    body = 'zookeeper = new ZooKeeperBuilder {\n host = "h"\n pathPrefix = "/p"\n'
    body += ' credentials = Some(("a:b", "s3cret"))\n}'
    assert left_out(body) == [(4, "credentials = ...")]
    assert left_out('val password = "s3cret"') == [(1, "val password = ...")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: there is no new KestrelConfig"),
        ("new KestrelConfig {\n\n", "line 1: this { is never closed"),
        ('new KestrelConfig {\n a = "x\n}', "line 2: a string is not terminated"),
        ("\n/* /* */ new KestrelConfig {}", "line 2: a comment is not terminated"),
        ("new LoggerConfig { }", "line 1: this does not create a KestrelConfig"),
        (f"new KestrelConfig {{\n a = {'(' * 100}", f"line 2: brackets are nested more than {DEEPEST}"),
        (f"new KestrelConfig {{ queues = List({TWIN}, {TWIN}) }}", "another [[queues]]"),
    ],
)  # fmt: skip
def test_invalid_source_is_refused(text: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=r"a\.scala") as failed:
        convert_text(text, "a.scala")
    assert said in str(failed.value) and failed.value.status == 2


def test_deep_nesting_and_long_files_cost_little() -> None:
    for text in ("{" * 20_000, "}" * 20_000, "(" * 10_000 + "}" * 10_000, "a = " * 10_000):
        with pytest.raises(ToolFailed):
            convert_text(text, "a.scala")
    assert convert("\n" * 20_000 + "a = b :: c" + "\n" * 20_000)[1]


# The command.


def write(folder: Path, text: str) -> str:
    path = folder / "production.scala"
    path.write_text(text)
    return str(path)


def test_server_loads_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path, WHOLE), tmp_path / "production.toml"
    assert main(["-o", str(target), source]) == 0
    assert capsys.readouterr() == ("", "")
    assert load(target).queue_path == "/srv/queues"
    assert target.stat().st_mode & 0o777 == 0o600  # it may have a password


def test_omission_is_printed_and_written_to_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path, "new KestrelConfig {\n  queuePath = base\n}"), tmp_path / "production.toml"
    assert main(["--output", str(target), source]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"kestrel-convert-config: {source}, left out: line 2: queuePath = base: ")
    assert "# line 2: queuePath = base: " in target.read_text()
    load(target)


def test_existing_file_is_replaced_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path, WHOLE), tmp_path / "production.toml"
    target.write_text("mine")
    assert main(["-o", str(target), source]) == 2
    assert "use --force" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert main(["--force", "-o", str(target), source]) == 0
    load(target)
    assert main(["--force", "-o", str(tmp_path), source]) == 2


def test_missing_folder_is_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, folder = write(tmp_path, WHOLE), tmp_path / "etc"
    assert main(["-o", str(folder / "production.toml"), source]) == 2
    said = f"kestrel-convert-config: there is no folder {folder} for the file: make it first\n"
    assert capsys.readouterr() == ("", said)
    assert not folder.exists()


def test_other_files_are_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, WHOLE)
    monkeypatch.chdir(tmp_path)
    mine = [tmp_path / f"production.toml.new{number}" for number in ("", 0)]
    for path in mine:
        path.write_text("mine")
    assert main(["-o", "production.toml", source]) == 0
    assert [path.read_text() for path in mine] == ["mine", "mine"]
    assert len(list(tmp_path.iterdir())) == 4


def test_failed_disk_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(Disk):
        def sync(self, descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = write(tmp_path, WHOLE)
    assert main(["-o", str(tmp_path / "production.toml"), source], Full()) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["production.scala"]


def test_standard_input_is_converted_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WHOLE.encode())))
    assert main(["-"]) == 0
    assert loads(capsysbinary.readouterr().out.decode()).queue_path == "/srv/queues"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"new KestrelConfig {\n\xff }", "line 2: this is not UTF-8"),
        (b" " * (LARGEST_BYTES + 1), "has more than"),
        (b"nothing", "there is no new KestrelConfig"),
    ],
)
def test_unusable_input_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes | None, said: str
) -> None:
    source, target = tmp_path / "production.scala", tmp_path / "production.toml"
    if data is not None:
        source.write_bytes(data)
    assert main(["-o", str(target), str(source)]) == 2
    assert said in capsys.readouterr().err
    assert not target.exists()
