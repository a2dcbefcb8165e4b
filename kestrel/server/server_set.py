"""A server's membership in a server set: an ephemeral node, which ZooKeeper removes when the session ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kazoo.exceptions import NoAuthError, NoNodeError, SessionExpiredError
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl
from twisted.logger import Logger
from zope.interface import implementer

from kestrel.cluster.member import Member, parse_member
from kestrel.server.announcer import IServerSet

log = Logger(__name__)

_NODE: Final = "member_"

_PERMISSIONS: Final = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "admin"}


class _MemberNode(NamedTuple):
    """A node of a server set."""

    path: str
    data: bytes
    session: int
    """Session that owns the node."""


@implementer(IServerSet)
class ServerSet:
    """The built-in server set.

    It reads the nodes in ZooKeeper instead of relying on earlier replies, which may have been lost. It also removes
    nodes with this server's address from earlier sessions, for example of a killed process. They would send clients to
    this server until that session expires. After a success in the current session, only the own node is checked.
    """

    def __init__(self, client: Any, path: str, member: Member) -> None:
        self._client = client
        self._path = path
        self._member = member
        self._done: tuple[int, str | None] | None = None
        """Session of the last success and the path of its node, or None for the path if the server left the set."""

    def join(self) -> None:
        """Create the server's node unless it exists. Blocks; raises kazoo's errors."""
        session = self._session()
        done, self._done = self._done, None
        path = done[1] if done is not None and done[0] == session else None
        if path is None or not self._is_of(session, path):
            path = self._tidy(session, is_member=True) or self._create()
        self._done = (session, path)

    def leave(self) -> None:
        """Remove the server's nodes. Blocks; raises kazoo's errors."""
        session = self._session()
        done, self._done = self._done, None
        if done is None or done[0] != session:
            self._tidy(session, is_member=False)
        elif done[1] is not None:
            with suppress(NoNodeError):
                self._client.delete(done[1])
        self._done = (session, None)

    def _session(self) -> int:
        client_id = self._client.client_id
        if client_id is None:
            raise SessionExpiredError("there is no connection")
        session: int = client_id[0]
        return session

    def _is_of(self, session: int, path: str) -> bool:
        stat = self._client.exists(path)
        return stat is not None and stat.ephemeralOwner == session

    def _create(self) -> str:
        path: str = self._client.create(
            f"{self._path}/{_NODE}", self._member.to_json(), ephemeral=True, sequence=True, makepath=True
        )
        return path

    def _tidy(self, session: int, *, is_member: bool) -> str | None:
        """Remove this server's nodes, except one that is valid if it `is_member`. Return the path of that node."""
        there = None
        for node in self._nodes():
            if node.session == session:
                if is_member and there is None and node.data == self._member.to_json():
                    there = node.path
                    continue
            elif not self._is_ours(node):
                continue
            with suppress(NoNodeError):
                self._remove(node, is_stale=node.session != session)
        return there

    def _nodes(self) -> Iterator[_MemberNode]:
        try:
            names = self._client.get_children(self._path)
        except NoNodeError:
            return
        for name in names:
            if name.startswith(_NODE):
                path = f"{self._path}/{name}"
                with suppress(NoNodeError):  # the member left meanwhile
                    data, stat = self._client.get(path)
                    yield _MemberNode(path, data, stat.ephemeralOwner)

    def _is_ours(self, node: _MemberNode) -> bool:
        try:
            return parse_member(node.data).service == self._member.service
        except ValueError:
            return False

    def _remove(self, node: _MemberNode, *, is_stale: bool) -> None:
        try:
            self._client.delete(node.path)
        except NoAuthError:
            if not is_stale:
                raise
            log.warn("Cannot remove {node} of an earlier session of this server: no permission", node=node.path)


def acl_of(said: str | Sequence[str]) -> list[ACL]:
    """Return kazoo's form of the setting `acl`, which is a keyword or a list of ``scheme:id:permissions``."""
    if said == "open-unsafe":
        return list(OPEN_ACL_UNSAFE)
    if said == "everyone-read-creator-all":
        return [*READ_ACL_UNSAFE, *CREATOR_ALL_ACL]
    return [_acl_entry(each) for each in said]


def _acl_entry(said: str) -> ACL:
    scheme, _, rest = said.partition(":")
    identity, _, permissions = rest.rpartition(":")
    return make_acl(scheme, identity, **{_PERMISSIONS[letter]: True for letter in permissions})
