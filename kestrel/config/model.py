"""The whole configuration. All classes can also be made in code, without a file."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kestrel.config.queue_settings import AliasSettings, QueueOverrides, QueueSettings
from kestrel.config.server_settings import (
    AdminSettings,
    LoggingSettings,
    Section,
    ServerSettings,
    TlsSettings,
    ZooKeeperSettings,
)
from kestrel.config.setting import TABLE, TABLES, setting

__all__ = [
    "AdminSettings",
    "AliasSettings",
    "Config",
    "LoggingSettings",
    "QueueOverrides",
    "QueueSettings",
    "Section",
    "ServerSettings",
    "TlsSettings",
    "ZooKeeperSettings",
]


@attrs.frozen(kw_only=True)
class Config(ServerSettings):
    """A whole configuration. ``Config()`` has the defaults, as without a file."""

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
