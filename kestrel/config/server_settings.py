"""The settings of the server: those above a file's first table, and the smaller tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from kestrel.config.acl import ACL
from kestrel.config.setting import setting
from kestrel.config.setting_kinds import (
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
    TEXT,
    TEXTS,
    matching,
    one_of,
    optional,
    secret,
    table_of,
)
from kestrel.config.units import KIB, MIB

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

    http_port: int | None = attrs.field(default=2223, metadata=setting("httpPort", PORT, "Port of the admin pages."))
    listen_address: str = attrs.field(
        default="127.0.0.1",
        metadata=setting(
            "listenAddress", TEXT, "Address of the admin port. By default only this machine can reach it."
        ),
    )
    host_names: tuple[str, ...] = attrs.field(
        default=(),
        metadata=setting(
            "hostNames",
            TEXTS,
            "Names that browsers may use for the admin port, in addition to localhost, addresses, and the "
            "machine's own name. Other names are refused, since a page of another site may send the request.",
        ),
    )
    peek: bool = attrs.field(
        default=False,
        metadata=setting(
            "peek", BOOLEAN, "Whether the admin pages show administrators the items at the heads of queues."
        ),
    )
    max_queue_series: int = attrs.field(
        default=2000,
        metadata=setting(
            "maxQueueSeries",
            COUNT,
            "The number of queues with their own metrics and an hour of history: the oldest ones.",
        ),
    )


@attrs.frozen(kw_only=True)
class TlsSettings(Section):
    """``[tls]``: TLS for all ports of the configuration. Without the table they are plain.

    Endpoint strings of the command line have their own certificates.
    """

    cert_file: str = attrs.field(
        metadata=setting("certFile", PATH, "The server's certificate, followed by the intermediate ones.")
    )
    key_file: str | None = attrs.field(
        default=None, metadata=setting("keyFile", optional(PATH), "The key of certFile; none: it is in certFile.")
    )
    ca_file: str | None = attrs.field(
        default=None,
        metadata=setting(
            "caFile",
            optional(PATH),
            "The authorities that must have signed a client's certificate; none: clients need no certificate.",
        ),
    )
    minimum_version: str = attrs.field(
        default="1.2", metadata=setting("minimumVersion", one_of("1.2", "1.3"), "The oldest accepted TLS version.")
    )


@attrs.frozen(kw_only=True)
class ZooKeeperSettings(Section):
    """``[zookeeper]``: the server sets that the server joins. Without the table it joins none."""

    host: str = attrs.field(
        metadata=setting("host", HOSTS, "The ZooKeeper servers, separated by commas: zk1,zk2:2182.")
    )
    port: int = attrs.field(default=2181, metadata=setting("port", PORT_NUMBER, "Port of the servers without one."))
    path_prefix: str = attrs.field(
        metadata=setting(
            "pathPrefix",
            ZOOKEEPER_PATH,
            "The server sets are the nodes read and write below this one.",
        )
    )
    session_timeout_ms: int = attrs.field(
        default=10_000,
        metadata=setting("sessionTimeout", DURATION, "A server without contact for this time leaves its server sets."),
    )
    credentials: str | None = attrs.field(
        default=None,
        repr=False,  # keeps the password out of logs
        metadata=setting(
            "credentials",
            optional(CREDENTIALS),
            "User and password for ZooKeeper (digest scheme).",
        ),
    )
    acl: str | tuple[str, ...] = attrs.field(
        default="open-unsafe", metadata=setting("acl", ACL, "The access list of the server's nodes.")
    )
    tls: bool = attrs.field(
        default=False,
        metadata=setting("tls", BOOLEAN, "Whether to use TLS to ZooKeeper, and verify its certificates."),
    )
    ca_file: str | None = attrs.field(
        default=None,
        metadata=setting(
            "caFile", optional(PATH), "The authorities of ZooKeeper's certificates; none: this machine's."
        ),
    )
    cert_file: str | None = attrs.field(
        default=None,
        metadata=setting("certFile", optional(PATH), "The client certificate for ZooKeeper, if it requires one."),
    )
    key_file: str | None = attrs.field(
        default=None, metadata=setting("keyFile", optional(PATH), "The key of certFile; none: it is in certFile.")
    )
    server_name: str | None = attrs.field(
        default=None,
        metadata=setting(
            "serverName",
            optional(TEXT),
            "The name in ZooKeeper's certificates; none: the host of the connection.",
        ),
    )
    client_initializer: str | None = attrs.field(
        default=None,
        metadata=setting(
            "clientInitializer",
            optional(DOTTED_NAME),
            "A callable that makes the ZooKeeper client in place of the built-in one.",
        ),
    )
    server_set_initializer: str | None = attrs.field(
        default=None,
        metadata=setting(
            "serverSetInitializer",
            optional(DOTTED_NAME),
            "A callable that announces the server in place of the built-in one.",
        ),
    )
    advertise_address: str | None = attrs.field(
        default=None,
        metadata=setting(
            "advertiseAddress",
            optional(TEXT),
            "The published address; none: the listen address, or the host's first public one.",
        ),
    )


@attrs.frozen(kw_only=True)
class LoggingSettings(Section):
    """``[logging]``: the level, format and destination of the log."""

    level: str = attrs.field(
        default="info", metadata=setting("level", LEVEL, "Events below this level are not logged.")
    )
    levels: Mapping[str, str] = attrs.field(
        factory=dict,
        metadata=setting(
            "levels", table_of(LEVEL), 'Other levels for parts of the server: "kestrel.storage" = "debug".'
        ),
    )
    file: str | None = attrs.field(
        default=None, metadata=setting("file", optional(PATH), "The log file; none: the standard output.")
    )
    format: str = attrs.field(
        default="text",
        metadata=setting("format", one_of("text", "json"), "Plain text, or one JSON object per line."),
    )
    rotate_size_bytes: int | None = attrs.field(
        default=None,
        metadata=setting("rotateSize", optional(SIZE), "A log file of this size is rotated; none: never."),
    )
    rotate_count: int = attrs.field(
        default=10, metadata=setting("rotateCount", COUNT, "The number of rotated log files to keep.")
    )


@attrs.frozen(kw_only=True)
class ServerSettings(Section):
    """The settings above the first table of a file. A port of None is not opened."""

    listen_address: str = attrs.field(
        default="0.0.0.0",
        metadata=setting("listenAddress", TEXT, "The address of all ports; 0.0.0.0: all addresses of the host."),
    )
    memcache_listen_port: int | None = attrs.field(
        default=22133, metadata=setting("memcacheListenPort", PORT, "Port of the memcache protocol.")
    )
    text_listen_port: int | None = attrs.field(
        default=2222, metadata=setting("textListenPort", PORT, "Port of the text protocol.")
    )
    thrift_listen_port: int | None = attrs.field(
        default=2229, metadata=setting("thriftListenPort", PORT, "Port of the thrift protocol.")
    )
    connection_backlog: int = attrs.field(
        default=1024,
        metadata=setting(
            "connectionBacklog",
            COUNT,
            "The number of connections that may wait to be accepted. In a larger burst, the rest wait for seconds.",
        ),
    )
    queue_path: str = attrs.field(
        factory=lambda: str(state_folder() / "queues"),
        metadata=setting(
            "queuePath", PATH, "The folder of the journals; a relative one is below the working directory."
        ),
    )
    storage: str | None = attrs.field(
        default=None,
        metadata=setting(
            "storage",
            optional(matching("storage description", r"[A-Za-z][\w.-]*:.*", "journal:/var/spool/kestrel")),
            "The storage of the items, and its location; none: the journal, at queuePath.",
        ),
    )
    disk_reserve_size_bytes: int = attrs.field(
        default=16 * MIB,
        metadata=setting(
            "diskReserveSize",
            SIZE_OR_ZERO,
            "Reserved space in the journals' folder, released when the disk is full so that gets still work.",
        ),
    )
    max_total_memory_bytes: int | None = attrs.field(
        default=None,
        metadata=setting(
            "maxTotalMemory",
            optional(SIZE),
            "The maximum memory for items and replies of all queues and connections. Beyond it, new items of "
            "queues with a journal stay only on disk, and puts to other queues are refused; none: no limit.",
        ),
    )
    status_file: str = attrs.field(
        factory=lambda: str(state_folder() / "status"),
        metadata=setting("statusFile", PATH, "The file that stores the server's status across restarts."),
    )
    default_status: str = attrs.field(
        default="Up",
        metadata=setting(
            "defaultStatus",
            one_of("Up", "WriteAvoid", "ReadOnly", "Quiescent"),
            "The status of a server without a stored one.",
        ),
    )
    status_change_grace_period_ms: int = attrs.field(
        default=0,
        metadata=setting(
            "statusChangeGracePeriod",
            DURATION_OR_ZERO,
            "The time after a change to a stricter status in which forbidden commands are still accepted.",
        ),
    )
    expiration_timer_frequency_ms: int | None = attrs.field(
        default=None,
        metadata=setting(
            "expirationTimerFrequency",
            optional(DURATION),
            "The interval of sweeps for expired items in all queues; none: only in queues that are used.",
        ),
    )
    client_timeout_ms: int | None = attrs.field(
        default=None,
        metadata=setting(
            "clientTimeout",
            optional(DURATION),
            "A connection without a request for this time is closed.",
        ),
    )
    max_open_transactions: int = attrs.field(
        default=1,
        metadata=setting("maxOpenTransactions", COUNT, "The maximum number of open reads per connection and queue."),
    )
    administrators: tuple[bytes, ...] | None = attrs.field(
        default=None,
        metadata=setting(
            "administrators",
            optional(IDENTITIES),
            "Only these clients, and those of --trust, may shut the server down, reload it, change its status, or "
            "flush or delete queues; none: all clients; an empty list: only those of --trust.",
        ),
    )
    connection_limit_refuse_writes: int | None = attrs.field(
        default=None,
        metadata=setting(
            "connectionLimitRefuseWrites",
            optional(COUNT),
            "A connection opened above this number of connections cannot put.",
        ),
    )
    connection_limit_refuse_reads: int | None = attrs.field(
        default=None,
        metadata=setting(
            "connectionLimitRefuseReads",
            optional(COUNT),
            "A connection opened above this number of connections cannot get.",
        ),
    )
    max_connections: int = attrs.field(
        default=20_000,
        metadata=setting(
            "maxConnections",
            COUNT,
            "The maximum number of connections. It is lower if the process may open fewer files.",
        ),
    )
    max_queues: int = attrs.field(
        default=20_000,
        metadata=setting(
            "maxQueues",
            COUNT,
            "The number of queues from which clients cannot create more. Existing queues stay.",
        ),
    )
    keep_alive_ms: int | None = attrs.field(
        default=60_000,
        metadata=setting(
            "keepAlive",
            optional(DURATION),
            "A client that is silent for this time is probed (TCP keepalive). If its system does not answer "
            "for the same time, the connection is closed, and its open reads are put back; none: never.",
        ),
    )
    request_timeout_ms: int | None = attrs.field(
        default=120_000,
        metadata=setting(
            "requestTimeout",
            optional(DURATION),
            "The maximum time for a request, from its first byte to its last, for a TLS handshake "
            "or close, and between two reads of a long reply. Then the connection is closed; none: no limit.",
        ),
    )
    max_request_item_size_bytes: int = attrs.field(
        default=16 * MIB,
        metadata=setting("maxRequestItemSize", SIZE, "A larger item is refused before its data is read."),
    )
    max_request_size_bytes: int = attrs.field(
        default=32 * MIB,
        metadata=setting(
            "maxRequestSize", SIZE, "A larger thrift frame, or text put with all its items, closes the connection."
        ),
    )
    max_total_request_size_bytes: int = attrs.field(
        default=256 * MIB,
        metadata=setting(
            "maxTotalRequestSize",
            SIZE,
            "The maximum bytes of incomplete requests of all connections. Beyond it, the connections that "
            "use more than their share are closed, the slowest first.",
        ),
    )
    max_uncommitted_bytes: int = attrs.field(
        default=64 * MIB,
        metadata=setting(
            "maxUncommittedBytes",
            SIZE,
            "While more bytes than this are uncommitted, further puts wait. They are refused when as many wait, so "
            "that a disk that hangs does not fill the memory.",
        ),
    )
    max_text_put_items: int = attrs.field(
        default=1024,
        metadata=setting("maxTextPutItems", COUNT, "A text put with more items is refused, and stores none."),
    )
    max_thrift_list_size: int = attrs.field(
        default=10_000,
        metadata=setting(
            "maxThriftListSize",
            COUNT,
            "A thrift call with more items or ids is refused; no thrift reply has more items.",
        ),
    )
    max_line_size_bytes: int = attrs.field(
        default=8 * KIB, metadata=setting("maxLineSize", SIZE, "A longer request line closes the connection.")
    )
    max_pipeline_bytes: int = attrs.field(
        default=MIB,
        metadata=setting(
            "maxPipelineBytes",
            SIZE,
            "While more reply bytes than this are held for a connection, none of its requests run. A connection that "
            "sends more than this behind a waiting command is closed.",
        ),
    )
    echo_requested_key: bool = attrs.field(
        default=False,
        metadata=setting(
            "echoRequestedKey",
            BOOLEAN,
            "A memcache reply has the requested key with its options instead of the queue: for "
            "client libraries that look up their key in the reply.",
        ),
    )
    enable_session_trace: bool = attrs.field(
        default=False,
        metadata=setting("enableSessionTrace", BOOLEAN, "Log the beginning and the end of each connection."),
    )
