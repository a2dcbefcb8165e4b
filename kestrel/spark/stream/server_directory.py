"""Who is there at present: the servers that a person named, or those that are in a server set."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kestrel.client.members import Follow, StartedFollower, addresses_of, follow_zookeeper
from kestrel.cluster.kazoo_extra import KazooMissing, require_kazoo
from kestrel.cluster.member import READ
from kestrel.cluster.uri import ServerSetUri
from kestrel.config.units import format_duration_ms
from kestrel.spark.failures import SourceFailed
from kestrel.tools.tool_runner import explain_os_error

if TYPE_CHECKING:  # it imports kazoo, which is an extra
    from kestrel.cluster.follower import Members

T = TypeVar("T")

logger = logging.getLogger("kestrel.spark")

THRIFT: Final = "thrift"


class ServerDirectory(Protocol):
    """Who is there, for one that asks again and again. To be closed."""

    def addresses(self) -> Sequence[str]:
        """Where they speak thrift, none twice. Raises `SourceFailed`."""

    def expects(self, address: str) -> bool:
        """Whether that one is there, or may come back."""

    def hold(self) -> None:
        """From now on it is those who are there now. Raises `SourceFailed`."""

    def close(self) -> None:
        """Follow nobody any more."""


class FixedServerList:
    """A list that a person gave. Who is on it no more is not meant any more."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    def addresses(self) -> Sequence[str]:
        """The list."""
        return self._addresses

    def expects(self, address: str) -> bool:
        """Whether it is on the list."""
        return address in self._addresses

    def hold(self) -> None:
        """It does not change anyway."""

    def close(self) -> None:
        """There is nothing to do."""


def check_can_follow(uri: ServerSetUri) -> None:
    """Raises `SourceFailed` where this machine does not have what that needs."""
    try:
        require_kazoo()
        if uri.tls is not None:
            uri.tls.context()
    except KazooMissing as error:
        raise SourceFailed(f"{error}, on the driver and on every worker") from None
    except OSError as error:
        raise SourceFailed(f"{uri}: {explain_os_error(error)}; every worker needs this file of TLS") from None
    except ValueError as error:
        raise SourceFailed(f"{uri}: {error}") from None


def follow(uri: ServerSetUri, changed: Callable[[Members], object]) -> StartedFollower:
    """Begin to follow these sets. Raises `SourceFailed`."""
    check_can_follow(uri)
    return follow_zookeeper(uri, changed)


class ServerSetDirectory:
    """Those who are in one of the two sets and speak thrift, from when it is first asked. Who has left may come back.

    The first answer is waited for, for `patience_s`: until ZooKeeper has said who is there, and until somebody is.
    What is known does not become unknown. `begin` is for tests.
    """

    def __init__(self, uri: ServerSetUri, name: str, patience_s: float, begin: Follow = follow) -> None:
        self._uri = uri
        self._name = name
        self._patience_s = patience_s
        self._begin = begin
        self._follower: StartedFollower | None = None
        self._changes = threading.Condition()
        self._held: Sequence[str] = ()
        self._told: Sequence[str] = ()

    def addresses(self) -> Sequence[str]:
        """Those who are there now, the longest there first; at least one."""
        if self._held:
            return self._held
        found = self._when(self._patience_s, self.known)
        if not found:
            raise SourceFailed(self._failure())
        if found != self._told:
            logger.info("%s/%s: %s", self._uri, self._name, ", ".join(found))
            self._told = found
        return found

    def expects(self, address: str) -> bool:
        """Always: nobody has said that it is gone for good."""
        return True

    def hold(self) -> None:
        """From now on it is those who are there now."""
        self._held = self.addresses()

    def close(self) -> None:
        """End the session with ZooKeeper."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def is_known(self, timeout_s: float) -> bool:
        """Whether ZooKeeper says within that time who is there, be it nobody."""
        return self._when(timeout_s, lambda: self._following().members is not None)

    def known(self) -> Sequence[str]:
        """Who is there, without waiting; nobody, as long as that is not known."""
        members = self._following().members
        if members is None:
            return ()
        found = addresses_of(members, THRIFT)
        return tuple(map(str, found.reads if self._name == READ else found.writes))

    def _following(self) -> StartedFollower:
        if self._follower is None:
            self._follower = self._begin(self._uri, self._changed)
        return self._follower

    def _changed(self, _: object) -> None:
        # In the thread of the follower.
        with self._changes:
            self._changes.notify_all()

    def _when(self, timeout_s: float, look: Callable[[], T]) -> T:
        with self._changes:
            return self._changes.wait_for(look, timeout_s)

    def _failure(self) -> str:
        waited = f"after {format_duration_ms(round(self._patience_s * 1000))} (patience)"
        follower = self._following()
        if follower.members is None:
            return (
                f"{self._uri} is not known {waited}: {follower.problem}. The way to ZooKeeper has to be open from the "
                'driver and from every worker; without it, name the servers: option("servers", "mq1,mq2")'
            )
        return (
            f"{waited} there is no server in {self._uri}/{self._name} that speaks thrift: those that are to be there "
            "have that path in their configuration, and are Up"
        )
