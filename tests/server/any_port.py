"""The endpoints of a configuration with ports that the system picks. Port 0 cannot be written in a file."""

from __future__ import annotations

from attrs import evolve

from kestrel.config.model import Config
from kestrel.server.endpoints import endpoints_to_serve


def endpoints_on_any_port(config: Config) -> dict[str, list[str]]:
    """Return the endpoint strings of each protocol of `config` on 127.0.0.1, each with port 0."""
    anywhere = evolve(
        config, listen_address="127.0.0.1", memcache_listen_port=0, text_listen_port=0, thrift_listen_port=0
    )
    return endpoints_to_serve(anywhere, {})
