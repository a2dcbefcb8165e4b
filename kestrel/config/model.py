"""The whole configuration. All classes can also be made in code, without a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from kestrel.config.queue_settings import AliasSettings, QueueOverrides, QueueSettings
from kestrel.config.setting import (
    BOOLEAN,
    COUNT,
    DURATION,
    DURATION_OR_ZERO,
    IDENTITIES,
    PATH,
    PORT,
    PORT_NUMBER,
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
from kestrel.config.units import KIB, MIB, show_value

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
CREDENTIALS = secret(matching("pair of user and password", r"[^:]+:.+", "user:password"), "user:password")
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


ACL: Final = SettingKind("ready-made access list, or a list of scheme:id:permissions", _acl, _show_acl)


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

    http_port: int | None = setting("httpPort", PORT, "Port of the admin pages.", 2223)
    listen_address: str = setting(
        "listenAddress", TEXT, "Address of the admin port. By default only this machine can reach it.", "127.0.0.1"
    )
    host_names: tuple[str, ...] = setting(
        "hostNames",
        TEXTS,
        "Names that browsers may use for the admin port, in addition to localhost, addresses, and the machine's own "
        "name. Other names are refused, since a page of another site may send the request.",
        (),
    )
    peek: bool = setting(
        "peek", BOOLEAN, "Whether the admin pages show administrators the items at the heads of queues.", False
    )
    max_queue_series: int = setting(
        "maxQueueSeries",
        COUNT,
        "The number of queues with their own metrics and an hour of history: the oldest ones.",
        2000,
    )


@attrs.frozen(kw_only=True)
class TlsSettings(Section):
    """``[tls]``: TLS for all ports of the configuration. Without the table they are plain.

    Endpoint strings of the command line have their own certificates.
    """

    cert_file: str = attrs.field(
        metadata=described("certFile", PATH, "The server's certificate, followed by the intermediate ones.")
    )
    key_file: str | None = setting("keyFile", optional(PATH), "The key of certFile; none: it is in certFile.", None)
    ca_file: str | None = setting(
        "caFile",
        optional(PATH),
        "The authorities that must have signed a client's certificate; none: clients need no certificate.",
        None,
    )
    minimum_version: str = setting("minimumVersion", one_of("1.2", "1.3"), "The oldest accepted TLS version.", "1.2")


@attrs.frozen(kw_only=True)
class ZooKeeperSettings(Section):
    """``[zookeeper]``: the server sets that the server joins. Without the table it joins none."""

    host: str = attrs.field(
        metadata=described("host", HOSTS, "The ZooKeeper servers, separated by commas: zk1,zk2:2182.")
    )
    port: int = setting("port", PORT_NUMBER, "Port of the servers without one.", 2181)
    path_prefix: str = attrs.field(
        metadata=described("pathPrefix", ZOOKEEPER_PATH, "The server sets are the nodes read and write below this one.")
    )
    session_timeout_ms: int = setting(
        "sessionTimeout", DURATION, "A server without contact for this time leaves its server sets.", 10_000
    )
    # Not in the repr, which keeps the password out of logs.
    credentials: str | None = setting(
        "credentials", optional(CREDENTIALS), "User and password for ZooKeeper (digest scheme).", None, repr=False
    )
    acl: str | tuple[str, ...] = setting("acl", ACL, "The access list of the server's nodes.", "open-unsafe")
    tls: bool = setting("tls", BOOLEAN, "Whether to use TLS to ZooKeeper, and verify its certificates.", False)
    ca_file: str | None = setting(
        "caFile", optional(PATH), "The authorities of ZooKeeper's certificates; none: this machine's.", None
    )
    cert_file: str | None = setting(
        "certFile", optional(PATH), "The client certificate for ZooKeeper, if it requires one.", None
    )
    key_file: str | None = setting("keyFile", optional(PATH), "The key of certFile; none: it is in certFile.", None)
    server_name: str | None = setting(
        "serverName", optional(TEXT), "The name in ZooKeeper's certificates; none: the host of the connection.", None
    )
    client_initializer: str | None = setting(
        "clientInitializer",
        optional(DOTTED_NAME),
        "A callable that makes the ZooKeeper client in place of the built-in one.",
        None,
    )
    server_set_initializer: str | None = setting(
        "serverSetInitializer",
        optional(DOTTED_NAME),
        "A callable that announces the server in place of the built-in one.",
        None,
    )
    advertise_address: str | None = setting(
        "advertiseAddress",
        optional(TEXT),
        "The published address; none: the listen address, or the host's first public one.",
        None,
    )


@attrs.frozen(kw_only=True)
class LoggingSettings(Section):
    """``[logging]``: the level, format and destination of the log."""

    level: str = setting("level", LEVEL, "Events below this level are not logged.", "info")
    levels: Mapping[str, str] = setting(
        "levels",
        table_of(LEVEL),
        'Other levels for parts of the server: "kestrel.storage" = "debug".',
        attrs.Factory(dict),
    )
    file: str | None = setting("file", optional(PATH), "The log file; none: the standard output.", None)
    format: str = setting("format", one_of("text", "json"), "Plain text, or one JSON object per line.", "text")
    rotate_size_bytes: int | None = setting(
        "rotateSize", optional(SIZE), "A log file of this size is rotated; none: never.", None
    )
    rotate_count: int = setting("rotateCount", COUNT, "The number of rotated log files to keep.", 10)


@attrs.frozen(kw_only=True)
class Config(Section):
    """A whole configuration. ``Config()`` has the defaults, as without a file. A port of None is not opened."""

    listen_address: str = setting(
        "listenAddress", TEXT, "The address of all ports; 0.0.0.0: all addresses of the host.", "0.0.0.0"
    )
    memcache_listen_port: int | None = setting("memcacheListenPort", PORT, "Port of the memcache protocol.", 22133)
    text_listen_port: int | None = setting("textListenPort", PORT, "Port of the text protocol.", 2222)
    thrift_listen_port: int | None = setting("thriftListenPort", PORT, "Port of the thrift protocol.", 2229)
    connection_backlog: int = setting(
        "connectionBacklog",
        COUNT,
        "The number of connections that may wait to be accepted. In a larger burst, the rest wait for seconds.",
        1024,
    )
    queue_path: str = setting(
        "queuePath",
        PATH,
        "The folder of the journals; a relative one is below the working directory.",
        attrs.Factory(lambda: str(state_folder() / "queues")),
    )
    storage: str | None = setting(
        "storage",
        optional(matching("storage description", r"[A-Za-z][\w.-]*:.*", "journal:/var/spool/kestrel")),
        "The storage of the items, and its location; none: the journal, at queuePath.",
        None,
    )
    disk_reserve_size_bytes: int = setting(
        "diskReserveSize",
        SIZE_OR_ZERO,
        "Reserved space in the journals' folder, released when the disk is full so that gets still work.",
        16 * MIB,
    )
    max_total_memory_bytes: int | None = setting(
        "maxTotalMemory",
        optional(SIZE),
        "The maximum memory for items and replies of all queues and connections. Beyond it, new items of queues with "
        "a journal stay only on disk, and puts to other queues are refused; none: no limit.",
        None,
    )
    status_file: str = setting(
        "statusFile",
        PATH,
        "The file that stores the server's status across restarts.",
        attrs.Factory(lambda: str(state_folder() / "status")),
    )
    default_status: str = setting(
        "defaultStatus",
        one_of("Up", "WriteAvoid", "ReadOnly", "Quiescent"),
        "The status of a server without a stored one.",
        "Up",
    )
    status_change_grace_period_ms: int = setting(
        "statusChangeGracePeriod",
        DURATION_OR_ZERO,
        "The time after a change to a stricter status in which forbidden commands are still accepted.",
        0,
    )
    expiration_timer_frequency_ms: int | None = setting(
        "expirationTimerFrequency",
        optional(DURATION),
        "The interval of sweeps for expired items in all queues; none: only in queues that are used.",
        None,
    )
    client_timeout_ms: int | None = setting(
        "clientTimeout", optional(DURATION), "A connection without a request for this time is closed.", None
    )
    max_open_transactions: int = setting(
        "maxOpenTransactions", COUNT, "The maximum number of open reads per connection and queue.", 1
    )
    administrators: tuple[bytes, ...] | None = setting(
        "administrators",
        optional(IDENTITIES),
        "Only these clients, and those of --trust, may shut the server down, reload it, change its status, or flush "
        "or delete queues; none: all clients; an empty list: only those of --trust.",
        None,
    )
    connection_limit_refuse_writes: int | None = setting(
        "connectionLimitRefuseWrites",
        optional(COUNT),
        "A connection opened above this number of connections cannot put.",
        None,
    )
    connection_limit_refuse_reads: int | None = setting(
        "connectionLimitRefuseReads",
        optional(COUNT),
        "A connection opened above this number of connections cannot get.",
        None,
    )
    max_connections: int = setting(
        "maxConnections",
        COUNT,
        "The maximum number of connections. It is lower if the process may open fewer files.",
        20_000,
    )
    max_queues: int = setting(
        "maxQueues", COUNT, "The number of queues from which clients cannot create more. Existing queues stay.", 20_000
    )
    keep_alive_ms: int | None = setting(
        "keepAlive",
        optional(DURATION),
        "A client that is silent for this time is probed (TCP keepalive). If its system does not answer for the same "
        "time, the connection is closed, and its open reads are put back; none: never.",
        60_000,
    )
    request_timeout_ms: int | None = setting(
        "requestTimeout",
        optional(DURATION),
        "The maximum time for a request, from its first byte to its last, for a TLS handshake or close, and between "
        "two reads of a long reply. Then the connection is closed; none: no limit.",
        120_000,
    )
    max_request_item_size_bytes: int = setting(
        "maxRequestItemSize", SIZE, "A larger item is refused before its data is read.", 16 * MIB
    )
    max_request_size_bytes: int = setting(
        "maxRequestSize",
        SIZE,
        "A larger thrift frame, or text put with all its items, closes the connection.",
        32 * MIB,
    )
    max_total_request_size_bytes: int = setting(
        "maxTotalRequestSize",
        SIZE,
        "The maximum bytes of incomplete requests of all connections. Beyond it, the connections that use more than "
        "their share are closed, the slowest first.",
        256 * MIB,
    )
    max_uncommitted_bytes: int = setting(
        "maxUncommittedBytes",
        SIZE,
        "While more bytes than this are uncommitted, further puts wait. They are refused when as many wait, so that "
        "a disk that hangs does not fill the memory.",
        64 * MIB,
    )
    max_text_put_items: int = setting(
        "maxTextPutItems", COUNT, "A text put with more items is refused, and stores none.", 1024
    )
    max_thrift_list_size: int = setting(
        "maxThriftListSize",
        COUNT,
        "A thrift call with more items or ids is refused; no thrift reply has more items.",
        10_000,
    )
    max_line_size_bytes: int = setting("maxLineSize", SIZE, "A longer request line closes the connection.", 8 * KIB)
    max_pipeline_bytes: int = setting(
        "maxPipelineBytes",
        SIZE,
        "While more reply bytes than this are held for a connection, none of its requests run. A connection that "
        "sends more than this behind a waiting command is closed.",
        MIB,
    )
    echo_requested_key: bool = setting(
        "echoRequestedKey",
        BOOLEAN,
        "A memcache reply has the requested key with its options, which some client libraries look up. If false, it "
        "has the name of the queue, as in Kestrel.",
        True,
    )
    enable_session_trace: bool = setting(
        "enableSessionTrace", BOOLEAN, "Log the beginning and the end of each connection.", False
    )
    default: QueueOverrides = setting(
        "default", TABLE, "Settings of all queues without their own.", attrs.Factory(QueueOverrides)
    )
    queues: Mapping[bytes, QueueOverrides] = setting("queues", TABLES, "Single queues, by name.", attrs.Factory(dict))
    aliases: Mapping[bytes, AliasSettings] = setting(
        "aliases", TABLES, "Names that stand for several queues.", attrs.Factory(dict)
    )
    admin: AdminSettings = setting("admin", TABLE, "The HTTP port for monitoring.", attrs.Factory(AdminSettings))
    tls: TlsSettings | None = setting("tls", TABLE, "TLS for all ports of the configuration.", None)
    zookeeper: ZooKeeperSettings | None = setting("zookeeper", TABLE, "The server sets that the server joins.", None)
    logging: LoggingSettings = setting(
        "logging", TABLE, "The level, format and destination of the log.", attrs.Factory(LoggingSettings)
    )
