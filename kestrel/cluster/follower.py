"""The current members of both server sets, read in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

from kazoo.exceptions import NoNodeError

from kestrel.cluster.member import READ, WRITE, Member, parse_member
from kestrel.cluster.uri import ServerSetUri
from kestrel.cluster.zookeeper import connection_problem, zookeeper_client
from kestrel.errors import KestrelError

logger = logging.getLogger("kestrel.cluster")

SESSION_TIMEOUT_S: Final = 10.0
READ_RETRY_S: Final = 5.0
"""Wait after a ZooKeeper failure other than of the connection."""
_CLOSE_TIMEOUT_S: Final = 1.0
"""Time that a close waits for the end of the session."""
_WAIT_POLL_S: Final = 0.25
"""Interval of a wait. Python handles a signal that arrives just before a wait only after it."""


class Members(NamedTuple):
    """The servers of both sets, oldest first."""

    reads: tuple[Member, ...] = ()
    """Servers for gets."""
    writes: tuple[Member, ...] = ()
    """Servers for puts."""


class ZooKeeperUnavailable(KestrelError):
    """A ZooKeeper that did not report the members."""


def _ignore_change(members: Members) -> None:
    pass


class Follower:
    """A follower of the members of both sets.

    While ZooKeeper is unreachable, the members stay the same. They also stay if a set becomes empty, since a ZooKeeper
    that has lost its data shows that. If all servers have really left, the old list does no harm.

    `changed` is called in the thread, first when the members are known, and then after each change. Raises the errors
    of `zookeeper_client`.
    """

    def __init__(
        self,
        uri: ServerSetUri,
        changed: Callable[[Members], object] = _ignore_change,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
    ) -> None:
        self._uri = uri
        self._changed = changed
        self._client = zookeeper_client(uri.hosts, session_timeout_s, credentials=uri.credentials, tls=uri.tls)
        self._client.add_listener(self._on_change)
        self._wake = threading.Event()
        self._is_known = threading.Event()
        self._closing = threading.Event()
        self._members = Members()
        self._parsed: dict[str, dict[str, Member | None]] = {READ: {}, WRITE: {}}
        """Members by set and node. The data of a node never changes. None for a node that is not a member."""
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="server-set", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        """End the session. Blocks for a moment if ZooKeeper does not answer."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_TIMEOUT_S)

    @property
    def members(self) -> Members | None:
        """The last known members, or None until ZooKeeper has answered."""
        return self._members if self._is_known.is_set() else None

    def wait(self, timeout_s: float) -> Members:
        """Return the members when they are known. Blocks. Raises `ZooKeeperUnavailable` after `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while not self._is_known.wait(min(_WAIT_POLL_S, max(0.0, end_s - time.monotonic()))):
            if time.monotonic() >= end_s:
                raise ZooKeeperUnavailable(f"{self._uri}: {self.problem}")
        return self._members

    @property
    def problem(self) -> str:
        """The reason why the members are unknown or outdated, as a part of a sentence."""
        return self._problem or connection_problem(self._client)

    # Methods of the thread.

    def _on_change(self, _: object) -> None:
        # Called when the connection state or a set has changed. It must not block.
        self._wake.set()

    def _run(self) -> None:
        self._client.start_async()
        pause_s: float | None = None
        while not self._closing.is_set():
            self._wake.wait(pause_s)
            self._wake.clear()
            pause_s = None
            if self._closing.is_set() or not self._client.connected:
                continue
            try:
                self._publish(Members(self._read(READ), self._read(WRITE)))
                self._problem = ""
            except Exception as error:  # an unexpected error must not end the thread
                self._problem = str(error) or type(error).__name__
                logger.warning("%s cannot be read: %s", self._uri, self._problem)
                pause_s = READ_RETRY_S
        self._client.stop()
        self._client.close()

    def _publish(self, seen: Members) -> None:
        before = self._members
        members = Members(seen.reads or before.reads, seen.writes or before.writes)
        if self._is_known.is_set() and members == before:
            return
        self._members = members
        self._is_known.set()
        self._changed(members)

    def _read(self, name: str) -> tuple[Member, ...]:
        path = f"{self._uri.path}/{name}"
        nodes = _children(self._client, path, self._on_change)
        known = self._parsed[name]
        parsed = {node: known[node] if node in known else _member_at(self._client, f"{path}/{node}") for node in nodes}
        self._parsed[name] = parsed
        return tuple(member for member in parsed.values() if member is not None)


def _children(client: Any, path: str, changed: Callable[[object], None]) -> list[str]:
    """Return the names of the child nodes, oldest first, or none if the path is missing.

    `changed` is called once, at the next change.
    """
    while True:
        try:
            nodes: list[str] = client.get_children(path, watch=changed)
        except NoNodeError:
            if client.exists(path, watch=changed) is None:
                return []
        else:
            return sorted(nodes, key=lambda node: (node.rpartition("_")[2], node))


def _member_at(client: Any, path: str) -> Member | None:
    try:
        data, _ = client.get(path)
        return parse_member(data)
    except NoNodeError:  # it left meanwhile, which is reported as a change
        return None
    except ValueError as error:
        logger.warning("%s is not a member of a server set: %s", path, error)
        return None
