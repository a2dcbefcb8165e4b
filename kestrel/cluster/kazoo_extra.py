"""The check for kazoo, which the extra ``cluster`` installs."""

from __future__ import annotations

from importlib.util import find_spec

from kestrel.errors import KestrelError


class KazooMissing(KestrelError):
    """A missing kazoo library."""

    def __init__(self) -> None:
        super().__init__("ZooKeeper needs the library kazoo: pip install 'kestrel-mq[cluster]'")


def require_kazoo() -> None:
    """Raise `KazooMissing` unless `zookeeper` and `follower`, which import it, can be imported."""
    if find_spec("kazoo") is None:
        raise KazooMissing
