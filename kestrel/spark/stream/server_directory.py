"""The current servers of a stream: a fixed list, or the members of a server set in ZooKeeper."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from kestrel.client.members import Follow, addresses_of, follow_zookeeper
from kestrel.cluster.member import READ
from kestrel.cluster.uri import KazooMissing, ServerSetUri, require_kazoo
from kestrel.config.units import format_duration_ms
from kestrel.spark.options import SourceFailed
from kestrel.tools.tool_runner import explain_os_error

if TYPE_CHECKING:  # it imports kazoo, which is an extra
    from kestrel.cluster.follower import Follower, Members

T = TypeVar("T")

logger = logging.getLogger("kestrel.spark")

THRIFT: Final = "thrift"


def check_can_follow(uri: ServerSetUri) -> None:
    """Raise `SourceFailed` if kazoo or a TLS file of the server set is missing on this machine."""
    try:
        require_kazoo()
        if uri.tls is not None:
            uri.tls.context()
    except KazooMissing as error:
        raise SourceFailed(f"{error}, on the driver and on every worker") from None
    except OSError as error:
        raise SourceFailed(f"{uri}: {explain_os_error(error)}; every worker needs this TLS file") from None
    except ValueError as error:
        raise SourceFailed(f"{uri}: {error}") from None


def follow(uri: ServerSetUri, changed: Callable[[Members], object]) -> Follower:
    """Start to follow a server set. Raises `SourceFailed`."""
    check_can_follow(uri)
    return follow_zookeeper(uri, changed)


class ServerDirectory:
    """The present servers of a stream: a fixed list, or the members of a server set that speak thrift.

    A server set is followed from the first request. A request waits up to `patience_s` until ZooKeeper has answered and
    the set has a member. Known members stay known if ZooKeeper goes away. Tests replace `begin`.
    """

    def __init__(
        self,
        uri: ServerSetUri | None,
        name: str,
        patience_s: float,
        begin: Follow = follow,
        *,
        fixed: Sequence[str] = (),
    ) -> None:
        """Use the list `fixed` if `uri` is None, else the members of the set `name` below that URI."""
        self._uri = uri
        self._name = name
        self._patience_s = patience_s
        self._begin = begin
        self._follower: Follower | None = None
        self._changes = threading.Condition()
        self._fixed = fixed
        self._told: Sequence[str] = ()

    def addresses(self) -> Sequence[str]:
        """Return the present servers without duplicates, longest members first; at least one. Raises `SourceFailed`."""
        if self._fixed:
            return self._fixed
        found = self._when(self._patience_s, self.known)
        if not found:
            raise SourceFailed(self._failure())
        if found != self._told:
            logger.info("%s/%s: %s", self._uri, self._name, ", ".join(found))
            self._told = found
        return found

    def expects(self, address: str) -> bool:
        """Return True if that server is present or may return, as any server of a set."""
        return self._uri is not None or address in self._fixed

    def close(self) -> None:
        """End the session with ZooKeeper, if there is one."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def is_known(self, timeout_s: float) -> bool:
        """Return True if ZooKeeper answers within `timeout_s`, even if the set is empty."""
        return self._when(timeout_s, lambda: self._following().members is not None)

    def known(self) -> Sequence[str]:
        """Return the members without waiting; empty until ZooKeeper has answered."""
        members = self._following().members
        if members is None:
            return ()
        found = addresses_of(members, THRIFT)
        return tuple(map(str, found.reads if self._name == READ else found.writes))

    def _following(self) -> Follower:
        assert self._uri is not None
        if self._follower is None:
            self._follower = self._begin(self._uri, self._changed)
        return self._follower

    def _changed(self, _: object) -> None:
        # Runs in the thread of the follower.
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
                f"{self._uri} is not known {waited}: {follower.problem}. The driver and every worker must be able to "
                'reach ZooKeeper; without it, name the servers: option("servers", "mq1,mq2")'
            )
        return (
            f"{waited} there is no server in {self._uri}/{self._name} that speaks thrift: configure that path on the "
            "servers, and check that their status is Up"
        )
