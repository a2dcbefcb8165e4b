"""The whole configuration, and the settings of one queue. All classes can also be made in code, without a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from kestrel.config.setting import (
    BOOLEAN,
    COUNT,
    DIGESTS,
    DURATION,
    DURATION_OR_ZERO,
    IDENTITIES,
    PATH,
    PORT,
    PORT_NUMBER,
    QUEUE_NAME,
    QUEUE_NAMES,
    SIZE,
    SIZE_OR_ZERO,
    TABLE,
    TABLES,
    TEXT,
    TEXTS,
    SettingKind,
    described,
    matching,
    one_of,
    optional,
    secret,
    setting,
    table_of,
)
from kestrel.config.units import GIB, KIB, MIB, show_value


@attrs.frozen(kw_only=True)
class QueueSettings:
    """The settings of one queue, including all inherited ones. The defaults apply without a file."""

    max_items: int | None = setting("maxItems", optional(COUNT), None)
    """A put is refused while the queue has this many items."""
    max_size_bytes: int | None = setting("maxSize", optional(SIZE), None)
    """A put is refused while the items have this many bytes of data."""
    max_item_size_bytes: int | None = setting("maxItemSize", optional(SIZE), None)
    """A larger item is always refused."""
    max_age_ms: int | None = setting("maxAge", optional(DURATION), None)
    """The age at which an item expires, if its client set no earlier time. A change also applies to existing items."""
    default_journal_size_bytes: int = setting("defaultJournalSize", SIZE, 16 * MIB)
    """The journal of an empty queue is rewritten when its file has this size."""
    max_memory_size_bytes: int = setting("maxMemorySize", SIZE, 128 * MIB)
    """Further data stay only on disk (read-behind). A larger journal file is rotated."""
    max_journal_size_bytes: int = setting("maxJournalSize", SIZE, GIB)
    """A journal is compacted when all its files together are larger."""
    min_journal_compact_delay_ms: int | None = setting("minJournalCompactDelay", optional(DURATION), 60_000)
    """The minimum time between two rewrites of a journal for its size; none: no minimum."""
    discard_old_when_full: bool = setting("discardOldWhenFull", BOOLEAN, False)
    """A put to a full queue drops items from the head until there is room, rather than being refused."""
    keep_journal: bool = setting("keepJournal", BOOLEAN, True)
    """Keep the items on disk. Otherwise they are lost when the server stops."""
    sync_journal_ms: int | None = setting("syncJournal", optional(DURATION_OR_ZERO, "never"), None)
    """The maximum time before the journal is written to the disk (fsync). 0: the reply to a change waits for it. Never:
    the operating system decides, and unwritten data are lost when the machine crashes, but not when the server does.
    """
    expire_to_queue: bytes | None = setting("expireToQueue", optional(QUEUE_NAME), None)
    """Expired items are put to this queue instead of being dropped."""
    max_expire_sweep: int | None = setting("maxExpireSweep", optional(COUNT), None)
    """The maximum number of items that one sweep of the timer expires."""
    max_redeliveries: int | None = setting("maxRedeliveries", optional(COUNT), None)
    """An item that was aborted or timed out this many times moves to errorQueue."""
    error_queue: bytes | None = setting("errorQueue", optional(QUEUE_NAME), None)
    """The queue for items that were aborted or timed out maxRedeliveries times. Both settings are needed."""
    fanout_only: bool = setting("fanoutOnly", BOOLEAN, False)
    """The queue stores no items: they only go to its children (name+child)."""
    max_queue_age_ms: int | None = setting("maxQueueAge", optional(DURATION), None)
    """An empty queue is deleted at this age, counted from its creation or the server's start."""
    enable_trace: bool = setting("enableTrace", BOOLEAN, False)
    """Log each opening, confirm and abort of a read of this queue."""
    disable_aggressive_rewrites: bool = setting("disableAggressiveRewrites", BOOLEAN, False)
    """Do not rewrite the journal repeatedly when a queue has no items except many open reads."""
    open_transaction_timeout_ms: int | None = setting("openTransactionTimeout", optional(DURATION), None)
    """An open read is put back at the head after this time."""
    white_list_client_id_for_enqueue: tuple[bytes, ...] | None = setting(
        "whiteListClientIdForEnqueue", optional(IDENTITIES), None
    )
    """Only these clients may put; none: all clients; an empty list: no client."""
    white_list_client_id_for_dequeue: tuple[bytes, ...] | None = setting(
        "whiteListClientIdForDequeue", optional(IDENTITIES), None
    )
    """Only these clients may get; none: all clients; an empty list: no client."""


@attrs.frozen
class QueueOverrides:
    """The settings that one table of a file sets for a queue. All others are inherited."""

    values: Mapping[str, Any] = attrs.field(factory=dict)
    """Values by the field's name in `QueueSettings`. None means that the file has "none"."""

    def over(self, inherited: QueueSettings) -> QueueSettings:
        """Return the inherited settings with these settings in place of theirs."""
        return attrs.evolve(inherited, **self.values) if self.values else inherited


@attrs.frozen(kw_only=True)
class AliasSettings:
    """An alias: a name for one or more queues. An item put to it is put to each of them."""

    name: bytes = attrs.field(metadata=described("name", QUEUE_NAME))
    """The name that clients put to. It masks a queue with the same name."""
    destination_queues: tuple[bytes, ...] = attrs.field(metadata=described("destinationQueues", QUEUE_NAMES))
    """Queues, fanout queues or further aliases."""


__all__ = [
    "AdminSettings",
    "AliasSettings",
    "Config",
    "LoggingSettings",
    "QueueOverrides",
    "QueueSettings",
    "Section",
    "TlsSettings",
    "ZooKeeperSettings",
]

LEVEL = one_of("debug", "info", "warn", "error", "critical")
HOSTS = matching("list of hosts", r"[^\s,/@]+(,[^\s,/@]+)*", "zk1,zk2:2182")
CREDENTIALS = secret("pair of user and password", r"[^:]+:.+", "user:password")
# Names that ZooKeeper accepts for a node.
ZOOKEEPER_PATH = matching(
    "path from the root",
    r"(/(?!\.\.?(/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+",
    "/services/kestrel",
)
DOTTED_NAME = matching("dotted name", r"[^\W\d]\w*(\.[^\W\d]\w*)+", "my_package.my_module.my_callable")

PREDEFINED_ACLS: Final = ("open-unsafe", "everyone-read-creator-all")

# scheme:id:permissions, as in ZooKeeper's own tools. An id may contain colons (digest:user:hash).
_ENTRY: Final = re.compile(r"[^:]+:.+:[cdrwa]+")


def _acl(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str) and value in PREDEFINED_ACLS:
        return value
    if isinstance(value, list) and value:
        return tuple(_entry(each) for each in value)
    ready_made = " or ".join(f'"{word}"' for word in PREDEFINED_ACLS)
    raise ValueError(f'{show_value(value)} is neither {ready_made} nor a list like ["world:anyone:r"]')


def _entry(value: object) -> str:
    if not isinstance(value, str) or not _ENTRY.fullmatch(value):
        raise ValueError(f'{show_value(value)} is not scheme:id:permissions; write for example "world:anyone:r"')
    return value


def _show_acl(acl: str | tuple[str, ...]) -> str:
    return acl if isinstance(acl, str) else ",".join(acl)


ACL: Final = SettingKind(_acl, _show_acl)


def state_folder() -> Path:
    """Return the folder for the state of a server without a file. Unlike /tmp, other users cannot write to it."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # According to the XDG specification, a relative path is ignored.
    base = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~"), ".local", "state")
    return base / "kestrel"


@attrs.frozen(kw_only=True)
class Section:
    """A table of a file that stores which of its settings the file gives."""

    given: frozenset[str] = attrs.field(default=frozenset(), eq=False, repr=False)
    """Names of fields that the file gives, even with the default value."""


@attrs.frozen(kw_only=True)
class AdminSettings(Section):
    """``[admin]``: the HTTP port for monitoring by people and programs."""

    http_port: int | None = setting("httpPort", PORT, 2223)
    """Port of the admin pages."""
    listen_address: str = setting("listenAddress", TEXT, "127.0.0.1")
    """Address of the admin port. By default only this machine can reach it."""
    host_names: tuple[str, ...] = setting("hostNames", TEXTS, ())
    """Names that browsers may use for the admin port, in addition to localhost, addresses, and the machine's own name.
    Other names are refused, since a page of another site may send the request.
    """
    peek: bool = setting("peek", BOOLEAN, False)
    """Whether the admin pages show administrators the items of queues."""
    token_digests: tuple[str, ...] = setting("tokenDigests", DIGESTS, ())
    """SHA-256 digests of the tokens of administrators. If there are any, clients of the admin port without a token, a
    listed certificate or a trusted endpoint are no administrators.
    """
    max_queue_series: int = setting("maxQueueSeries", COUNT, 2000)
    """The number of queues with their own metrics and an hour of history: the oldest ones."""


@attrs.frozen(kw_only=True)
class TlsSettings(Section):
    """``[tls]``: TLS for all ports of the configuration. Without the table they are plain.

    Endpoint strings of the command line have their own certificates.
    """

    cert_file: str = attrs.field(metadata=described("certFile", PATH))
    """The server's certificate, followed by the intermediate ones."""
    key_file: str | None = setting("keyFile", optional(PATH), None)
    """The key of certFile; none: it is in certFile."""
    ca_file: str | None = setting("caFile", optional(PATH), None)
    """The authorities that must have signed a client's certificate; none: clients need no certificate."""
    minimum_version: str = setting("minimumVersion", one_of("1.2", "1.3"), "1.2")
    """The oldest accepted TLS version."""


@attrs.frozen(kw_only=True)
class ZooKeeperSettings(Section):
    """``[zookeeper]``: the server sets that the server joins. Without the table it joins none."""

    host: str = attrs.field(metadata=described("host", HOSTS))
    """The ZooKeeper servers, separated by commas: zk1,zk2:2182."""
    port: int = setting("port", PORT_NUMBER, 2181)
    """Port of the servers without one."""
    path_prefix: str = attrs.field(metadata=described("pathPrefix", ZOOKEEPER_PATH))
    """The server sets are the nodes read and write below this one."""
    session_timeout_ms: int = setting("sessionTimeout", DURATION, 10_000)
    """A server without contact for this time leaves its server sets."""
    # Not in the repr, which keeps the password out of logs.
    credentials: str | None = setting("credentials", optional(CREDENTIALS), None, repr=False)
    """User and password for ZooKeeper (digest scheme)."""
    acl: str | tuple[str, ...] = setting("acl", ACL, "open-unsafe")
    """The access list of the server's nodes."""
    tls: bool = setting("tls", BOOLEAN, False)
    """Whether to use TLS to ZooKeeper, and verify its certificates."""
    ca_file: str | None = setting("caFile", optional(PATH), None)
    """The authorities of ZooKeeper's certificates; none: this machine's."""
    cert_file: str | None = setting("certFile", optional(PATH), None)
    """The client certificate for ZooKeeper, if it requires one."""
    key_file: str | None = setting("keyFile", optional(PATH), None)
    """The key of certFile; none: it is in certFile."""
    server_name: str | None = setting("serverName", optional(TEXT), None)
    """The name in ZooKeeper's certificates; none: the host of the connection."""
    client_initializer: str | None = setting("clientInitializer", optional(DOTTED_NAME), None)
    """A callable that makes the ZooKeeper client in place of the built-in one."""
    server_set_initializer: str | None = setting("serverSetInitializer", optional(DOTTED_NAME), None)
    """A callable that announces the server in place of the built-in one."""
    advertise_address: str | None = setting("advertiseAddress", optional(TEXT), None)
    """The published address; none: the listen address, or the host's first public one."""


@attrs.frozen(kw_only=True)
class LoggingSettings(Section):
    """``[logging]``: the level, format and destination of the log."""

    level: str = setting("level", LEVEL, "info")
    """Events below this level are not logged; at info, also Twisted's below warn."""
    levels: Mapping[str, str] = setting("levels", table_of(LEVEL), attrs.Factory(dict))
    """Other levels for parts of the server: "kestrel.storage" = "debug"."""
    file: str | None = setting("file", optional(PATH), None)
    """The log file; none: the standard output."""
    format: str = setting("format", one_of("text", "json"), "text")
    """Plain text, or one JSON object per line."""
    rotate_size_bytes: int | None = setting("rotateSize", optional(SIZE), None)
    """A log file of this size is rotated; none: never."""
    rotate_count: int = setting("rotateCount", COUNT, 10)
    """The number of rotated log files to keep."""


@attrs.frozen(kw_only=True)
class Config(Section):
    """A whole configuration. ``Config()`` has the defaults, as without a file. A port of None is not opened."""

    listen_address: str = setting("listenAddress", TEXT, "0.0.0.0")
    """The address of all ports; 0.0.0.0: all addresses of the host."""
    memcache_listen_port: int | None = setting("memcacheListenPort", PORT, 22133)
    """Port of the memcache protocol."""
    text_listen_port: int | None = setting("textListenPort", PORT, 2222)
    """Port of the text protocol."""
    thrift_listen_port: int | None = setting("thriftListenPort", PORT, 2229)
    """Port of the thrift protocol."""
    connection_backlog: int = setting("connectionBacklog", COUNT, 1024)
    """The number of connections that may wait to be accepted. In a larger burst, the rest wait for seconds."""
    queue_path: str = setting("queuePath", PATH, attrs.Factory(lambda: str(state_folder() / "queues")))
    """The folder of the journals; a relative one is below the working directory."""
    storage: str | None = setting(
        "storage", optional(matching("storage description", r"[A-Za-z][\w.-]*:.*", "journal:/var/spool/kestrel")), None
    )
    """The storage of the items, and its location; none: the journal, at queuePath."""
    disk_reserve_size_bytes: int = setting("diskReserveSize", SIZE_OR_ZERO, 16 * MIB)
    """Reserved space in the journals' folder, released when the disk is full so that gets still work."""
    max_total_memory_bytes: int | None = setting("maxTotalMemory", optional(SIZE), None)
    """The maximum memory for items and replies of all queues and connections. Beyond it, new items of queues with a
    journal stay only on disk, and puts to other queues are refused; none: no limit.
    """
    status_file: str = setting("statusFile", PATH, attrs.Factory(lambda: str(state_folder() / "status")))
    """The file that stores the server's status across restarts."""
    default_status: str = setting("defaultStatus", one_of("Up", "WriteAvoid", "ReadOnly", "Quiescent"), "Up")
    """The status of a server without a stored one."""
    status_change_grace_period_ms: int = setting("statusChangeGracePeriod", DURATION_OR_ZERO, 0)
    """The time after a change to a stricter status in which forbidden commands are still accepted."""
    expiration_timer_frequency_ms: int | None = setting("expirationTimerFrequency", optional(DURATION), None)
    """The interval of sweeps for expired items in all queues; none: only in queues that are used."""
    client_timeout_ms: int | None = setting("clientTimeout", optional(DURATION), None)
    """A connection without a request for this time is closed."""
    max_open_transactions: int = setting("maxOpenTransactions", COUNT, 1)
    """The maximum number of open reads per connection and queue."""
    administrators: tuple[bytes, ...] | None = setting("administrators", optional(IDENTITIES), None)
    """Only these clients, and those of --trust, may shut the server down, reload it, change its status, or flush or
    delete queues; none: all clients; an empty list: only those of --trust.
    """
    connection_limit_refuse_writes: int | None = setting("connectionLimitRefuseWrites", optional(COUNT), None)
    """A connection opened above this number of connections cannot put."""
    connection_limit_refuse_reads: int | None = setting("connectionLimitRefuseReads", optional(COUNT), None)
    """A connection opened above this number of connections cannot get."""
    max_connections: int = setting("maxConnections", COUNT, 20_000)
    """The maximum number of connections. It is lower if the process may open fewer files."""
    max_queues: int = setting("maxQueues", COUNT, 20_000)
    """The number of queues from which clients cannot create more. Existing queues stay."""
    keep_alive_ms: int | None = setting("keepAlive", optional(DURATION), 60_000)
    """A client that is silent for this time is probed (TCP keepalive). If its system does not answer for the same time,
    the connection is closed, and its open reads are put back; none: never.
    """
    request_timeout_ms: int | None = setting("requestTimeout", optional(DURATION), 120_000)
    """The maximum time for a request, from its first byte to its last, for a TLS handshake or close, and between two
    reads of a long reply. Then the connection is closed; none: no limit.
    """
    max_request_item_size_bytes: int = setting("maxRequestItemSize", SIZE, 16 * MIB)
    """A larger item is refused before its data is read."""
    max_request_size_bytes: int = setting("maxRequestSize", SIZE, 32 * MIB)
    """A larger thrift frame, or text put with all its items, closes the connection."""
    max_total_request_size_bytes: int = setting("maxTotalRequestSize", SIZE, 256 * MIB)
    """The maximum bytes of incomplete requests of all connections. Beyond it, the connections that use more than their
    share are closed, the slowest first.
    """
    max_uncommitted_bytes: int = setting("maxUncommittedBytes", SIZE, 64 * MIB)
    """While more bytes than this are uncommitted, further puts wait. They are refused when as many wait, so that a disk
    that hangs does not fill the memory.
    """
    max_text_put_items: int = setting("maxTextPutItems", COUNT, 1024)
    """A text put with more items is refused, and stores none."""
    max_thrift_list_size: int = setting("maxThriftListSize", COUNT, 10_000)
    """A thrift call with more items or ids is refused; no thrift reply has more items."""
    max_line_size_bytes: int = setting("maxLineSize", SIZE, 8 * KIB)
    """A longer request line closes the connection."""
    max_pipeline_bytes: int = setting("maxPipelineBytes", SIZE, MIB)
    """While more reply bytes than this are held for a connection, none of its requests run. A connection that sends
    more than this behind a waiting command is closed.
    """
    echo_requested_key: bool = setting("echoRequestedKey", BOOLEAN, True)
    """A memcache reply has the requested key with its options, which some client libraries look up. If false, it has
    the name of the queue, as in Kestrel.
    """
    enable_session_trace: bool = setting("enableSessionTrace", BOOLEAN, False)
    """Log the beginning and the end of each connection."""
    default: QueueOverrides = setting("default", TABLE, attrs.Factory(QueueOverrides))
    """Settings of all queues without their own."""
    queues: Mapping[bytes, QueueOverrides] = setting("queues", TABLES, attrs.Factory(dict))
    """Single queues, by name."""
    aliases: Mapping[bytes, AliasSettings] = setting("aliases", TABLES, attrs.Factory(dict))
    """Names that stand for several queues."""
    admin: AdminSettings = setting("admin", TABLE, attrs.Factory(AdminSettings))
    """The HTTP port for monitoring."""
    tls: TlsSettings | None = setting("tls", TABLE, None)
    """TLS for all ports of the configuration."""
    zookeeper: ZooKeeperSettings | None = setting("zookeeper", TABLE, None)
    """The server sets that the server joins."""
    logging: LoggingSettings = setting("logging", TABLE, attrs.Factory(LoggingSettings))
    """The level, format and destination of the log."""
