"""The members of both server sets as they are at present, read in a thread of its own."""

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
"""How long after a failure of ZooKeeper's that is not its connection's."""
_CLOSE_TIMEOUT_S: Final = 1.0
"""How long a close waits for the session to be ended."""
_WAIT_POLL_S: Final = 0.25
"""Who waits looks up so often: Python notices a signal (Ctrl-C) that comes just before a wait only behind it."""


class Members(NamedTuple):
    """The servers of both sets, in the order in which they came."""

    reads: tuple[Member, ...] = ()
    """Those that gets may go to."""
    writes: tuple[Member, ...] = ()
    """Those that puts may go to."""


class ZooKeeperUnavailable(KestrelError):
    """ZooKeeper did not say who the members are."""


def _ignore_change(members: Members) -> None:
    pass


class Follower:
    """Who the members are, from when ZooKeeper has first said so.

    While ZooKeeper is away nothing changes. Nor does a set become empty in which there was somebody: that is what a
    ZooKeeper shows that has lost its data, and of servers that have all left nobody is any worse to ask than nobody.

    `changed` is called in the thread, at first and after each change. Raises OSError as `zookeeper_client`.
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
        """By set, and node; a node's data never change. None for what is no member."""
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="server-set", daemon=True)

    def start(self) -> Self:
        """Begin. Returns at once."""
        self._thread.start()
        return self

    def close(self) -> None:
        """End the session; blocks for a moment where ZooKeeper does not answer."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_TIMEOUT_S)

    @property
    def members(self) -> Members | None:
        """As far as is known; None until ZooKeeper has said anything."""
        return self._members if self._is_known.is_set() else None

    def wait(self, timeout_s: float) -> Members:
        """The members, as soon as they are known. Blocks; raises `ZooKeeperUnavailable`."""
        end_s = time.monotonic() + timeout_s
        while not self._is_known.wait(min(_WAIT_POLL_S, max(0.0, end_s - time.monotonic()))):
            if time.monotonic() >= end_s:
                raise ZooKeeperUnavailable(f"{self._uri}: {self.problem}")
        return self._members

    @property
    def problem(self) -> str:
        """Why the members are not known, or not any more, as a part of a sentence."""
        return self._problem or connection_problem(self._client)

    # In the thread.

    def _on_change(self, _: object) -> None:
        # Called when the connection has come or gone, and when a set has changed; must not block.
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
            except Exception as error:  # a fault of ours must not end the thread
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
    """The names of the nodes below, the oldest first; none where there is no such path yet. `changed` is called once,
    when that is no longer so."""
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
    except NoNodeError:  # it left meanwhile; a change that is told as well
        return None
    except ValueError as error:
        logger.warning("%s is no member of a server set: %s", path, error)
        return None
