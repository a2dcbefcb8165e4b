"""The settings of the server as a whole: what stands above a file's first table, and the smaller tables."""

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
# What ZooKeeper takes for the name of a node.
ZOOKEEPER_PATH = matching(
    "path from the root",
    r"(/(?!\.\.?(/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+",
    "/services/kestrel",
)
DOTTED_NAME = matching("dotted name", r"[^\W\d]\w*(\.[^\W\d]\w*)+", "my_package.my_module.my_callable")


def state_folder() -> Path:
    """Where a server without a file keeps its state. Unlike /tmp it is nobody else's to write to."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification wants a relative path ignored.
    base = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~"), ".local", "state")
    return base / "kestrel"


@attrs.frozen(kw_only=True)
class Section:
    """A table of a file that remembers which of its settings the file gives."""

    given: frozenset[str] = attrs.field(default=frozenset(), eq=False, repr=False)
    """Names of fields. A setting given at its default's value is given."""


@attrs.frozen(kw_only=True)
class AdminSettings(Section):
    """``[admin]``: the HTTP port for people and programs that watch the server."""

    http_port: int | None = attrs.field(default=2223, metadata=setting("httpPort", PORT, "Port of the admin pages."))
    listen_address: str = attrs.field(
        default="127.0.0.1",
        metadata=setting(
            "listenAddress", TEXT, "Address of the admin port: by default only this machine can reach it."
        ),
    )
    host_names: tuple[str, ...] = attrs.field(
        default=(),
        metadata=setting(
            "hostNames",
            TEXTS,
            "Names of this server that browsers may ask the admin port for, besides localhost, addresses, and the "
            "machine's own name. Asked for another name, it refuses: a page of another site may be behind it.",
        ),
    )
    peek: bool = attrs.field(
        default=False,
        metadata=setting(
            "peek", BOOLEAN, "Whether administrators are shown items at the heads of queues by the admin pages."
        ),
    )
    max_queue_series: int = attrs.field(
        default=2000,
        metadata=setting(
            "maxQueueSeries",
            COUNT,
            "Of so many queues the metrics tell one by one, and an hour of history is kept: those that came first.",
        ),
    )


@attrs.frozen(kw_only=True)
class ZooKeeperSettings(Section):
    """``[zookeeper]``: where the server announces itself. Without the table it does not."""

    host: str = attrs.field(
        metadata=setting("host", HOSTS, "The servers of ZooKeeper, with commas between: zk1,zk2:2182.")
    )
    port: int = attrs.field(
        default=2181, metadata=setting("port", PORT_NUMBER, "Port of those that are given without one.")
    )
    path_prefix: str = attrs.field(
        metadata=setting(
            "pathPrefix",
            ZOOKEEPER_PATH,
            "The server sets are the nodes read and write below this one.",
        )
    )
    session_timeout_ms: int = attrs.field(
        default=10_000,
        metadata=setting("sessionTimeout", DURATION, "A server out of touch for that long is taken off the list."),
    )
    credentials: str | None = attrs.field(
        default=None,
        repr=False,  # no password in a log
        metadata=setting(
            "credentials",
            optional(CREDENTIALS),
            "What the server shows to ZooKeeper (its digest scheme).",
        ),
    )
    acl: str | tuple[str, ...] = attrs.field(
        default="open-unsafe", metadata=setting("acl", ACL, "Who may read and change the announced nodes.")
    )
    tls: bool = attrs.field(
        default=False,
        metadata=setting("tls", BOOLEAN, "Whether ZooKeeper is spoken to over TLS, and its certificates verified."),
    )
    ca_file: str | None = attrs.field(
        default=None,
        metadata=setting(
            "caFile", optional(PATH), "Who signs ZooKeeper's certificates; none: whoever this machine trusts."
        ),
    )
    cert_file: str | None = attrs.field(
        default=None,
        metadata=setting("certFile", optional(PATH), "The certificate that is shown to ZooKeeper, if it wants one."),
    )
    key_file: str | None = attrs.field(
        default=None, metadata=setting("keyFile", optional(PATH), "Its key; none: it stands in certFile.")
    )
    server_name: str | None = attrs.field(
        default=None,
        metadata=setting(
            "serverName",
            optional(TEXT),
            "Whom ZooKeeper's certificates must be for; none: the host that is connected to.",
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
            "The address that clients are told; none: the one listened on, or the host's first public one.",
        ),
    )


@attrs.frozen(kw_only=True)
class LoggingSettings(Section):
    """``[logging]``: what is logged, how, and where to."""

    level: str = attrs.field(
        default="info", metadata=setting("level", LEVEL, "Events below this level are not logged.")
    )
    levels: Mapping[str, str] = attrs.field(
        factory=dict,
        metadata=setting(
            "levels", table_of(LEVEL), 'Other levels for parts of the server: "kestrel.journal" = "debug".'
        ),
    )
    file: str | None = attrs.field(
        default=None, metadata=setting("file", optional(PATH), "The log file; none: the standard output.")
    )
    format: str = attrs.field(
        default="text",
        metadata=setting("format", one_of("text", "json"), "Lines for people, or one JSON object a line."),
    )
    rotate_size_bytes: int | None = attrs.field(
        default=None,
        metadata=setting("rotateSize", optional(SIZE), "A log file of that size is set aside; none: never."),
    )
    rotate_count: int = attrs.field(
        default=10, metadata=setting("rotateCount", COUNT, "How many files that were set aside are kept.")
    )


@attrs.frozen(kw_only=True)
class ServerSettings(Section):
    """What stands above the first table of a file. A port that is None is not listened on."""

    listen_address: str = attrs.field(
        default="0.0.0.0",
        metadata=setting("listenAddress", TEXT, "The address of all ports; 0.0.0.0: every one of the host."),
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
            "How many connections may wait to be accepted. In a burst of more, the rest is heard seconds later.",
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
            "Which storage keeps the items, and where; none: the journal, at queuePath.",
        ),
    )
    disk_reserve_size_bytes: int = attrs.field(
        default=16 * MIB,
        metadata=setting(
            "diskReserveSize",
            SIZE_OR_ZERO,
            "Space put by in the journals' folder, given up when the disk is full so that gets go on.",
        ),
    )
    max_total_memory_bytes: int | None = attrs.field(
        default=None,
        metadata=setting(
            "maxTotalMemory",
            optional(SIZE),
            "The most memory for items and replies of all queues and connections together: beyond it, new items of "
            "queues with a journal stay on disk alone, and puts to those without are refused; none: no limit.",
        ),
    )
    status_file: str = attrs.field(
        factory=lambda: str(state_folder() / "status"),
        metadata=setting(
            "statusFile", PATH, "Where the server's status is remembered over a restart."
        ),
    )
    default_status: str = attrs.field(
        default="Up",
        metadata=setting(
            "defaultStatus",
            one_of("Up", "WriteAvoid", "ReadOnly", "Quiescent"),
            "The status of a server that remembers none.",
        ),
    )
    status_change_grace_period_ms: int = attrs.field(
        default=0,
        metadata=setting(
            "statusChangeGracePeriod",
            DURATION_OR_ZERO,
            "How long after a change to a stricter status the commands it forbids are still taken.",
        ),
    )
    expiration_timer_frequency_ms: int | None = attrs.field(
        default=None,
        metadata=setting(
            "expirationTimerFrequency",
            optional(DURATION),
            "How often expired items are looked for in all queues; none: only in a queue that is used.",
        ),
    )
    client_timeout_ms: int | None = attrs.field(
        default=None,
        metadata=setting(
            "clientTimeout",
            optional(DURATION),
            "A connection that asks for nothing for that long is closed.",
        ),
    )
    max_open_transactions: int = attrs.field(
        default=1,
        metadata=setting(
            "maxOpenTransactions", COUNT, "How many items of one queue a connection may hold open at a time."
        ),
    )
    administrators: tuple[bytes, ...] | None = attrs.field(
        default=None,
        metadata=setting(
            "administrators",
            optional(IDENTITIES),
            "Only these clients, and those of --trust, may shut the server down, reload it, change its status, or "
            "flush or delete queues; none: all may; an empty list: those of --trust alone.",
        ),
    )
    connection_limit_refuse_writes: int | None = attrs.field(
        default=None,
        metadata=setting(
            "connectionLimitRefuseWrites",
            optional(COUNT),
            "A connection opened when there are more than this is refused its puts.",
        ),
    )
    connection_limit_refuse_reads: int | None = attrs.field(
        default=None,
        metadata=setting(
            "connectionLimitRefuseReads",
            optional(COUNT),
            "A connection opened when there are more than this is refused its gets.",
        ),
    )
    max_connections: int = attrs.field(
        default=20_000,
        metadata=setting(
            "maxConnections",
            COUNT,
            "With so many connections another one is told so and closed; fewer where the process may open fewer files.",
        ),
    )
    max_queues: int = attrs.field(
        default=20_000,
        metadata=setting(
            "maxQueues",
            COUNT,
            "With so many queues no other comes into being by a client's request. Those that are there stay.",
        ),
    )
    keep_alive_ms: int | None = attrs.field(
        default=60_000,
        metadata=setting(
            "keepAlive",
            optional(DURATION),
            "A client that is silent for that long is asked for a sign of life, which its system gives; without one "
            "for as long again the connection is closed, and its open reads go back; none: never.",
        ),
    )
    request_timeout_ms: int | None = attrs.field(
        default=120_000,
        metadata=setting(
            "requestTimeout",
            optional(DURATION),
            "A request that has not come whole so long after its first byte ends the connection; so do a TLS handshake "
            "and a hang-up that take longer, and a long reply of which nothing is read for that time; none: never.",
        ),
    )
    max_request_item_size_bytes: int = attrs.field(
        default=16 * MIB,
        metadata=setting("maxRequestItemSize", SIZE, "A larger item is refused before its data are read."),
    )
    max_request_size_bytes: int = attrs.field(
        default=32 * MIB,
        metadata=setting(
            "maxRequestSize", SIZE, "A larger thrift frame, or text put with all its items, ends the connection."
        ),
    )
    max_total_request_size_bytes: int = attrs.field(
        default=256 * MIB,
        metadata=setting(
            "maxTotalRequestSize",
            SIZE,
            "The most bytes of requests that have not come whole, of all connections together: beyond it those who "
            "take more than their share are hung up on, the slowest first.",
        ),
    )
    max_uncommitted_bytes: int = attrs.field(
        default=64 * MIB,
        metadata=setting(
            "maxUncommittedBytes",
            SIZE,
            "While more than this is put and not safe yet, further puts wait, and are refused when as much waits: a "
            "disk that hangs does not fill the memory.",
        ),
    )
    max_text_put_items: int = attrs.field(
        default=1024,
        metadata=setting("maxTextPutItems", COUNT, "A text put of more items is refused, and stores none."),
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
        default=8 * KIB, metadata=setting("maxLineSize", SIZE, "A longer request line ends the connection.")
    )
    max_pipeline_bytes: int = attrs.field(
        default=MIB,
        metadata=setting(
            "maxPipelineBytes",
            SIZE,
            "While more replies than this are held for a connection, no more of its requests are carried out; one that "
            "sends more than this behind a command that waits is hung up on.",
        ),
    )
    echo_requested_key: bool = attrs.field(
        default=False,
        metadata=setting(
            "echoRequestedKey",
            BOOLEAN,
            "A memcache reply names the key that was asked for, options and all, and not the queue: for "
            "client libraries that look their key up in the reply.",
        ),
    )
    enable_session_trace: bool = attrs.field(
        default=False,
        metadata=setting("enableSessionTrace", BOOLEAN, "Log the beginning and the end of each connection."),
    )
