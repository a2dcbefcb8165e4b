"""One server in one server set: an ephemeral node of its session, which ZooKeeper removes when the session ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kazoo.exceptions import NoAuthError, NoNodeError, SessionExpiredError
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl
from zope.interface import implementer

from kestrel.cluster.member import Member, parse_member
from kestrel.server.interfaces import IServerSet

logger = logging.getLogger("kestrel.cluster")

_NODE: Final = "member_"

_PERMISSIONS: Final = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "admin"}


class _Found(NamedTuple):
    """A node of a set."""

    path: str
    data: bytes
    session: int
    """Whose it is."""


@implementer(IServerSet)
class ServerSet:
    """The built-in one.

    It looks what is there each time rather than remember what it did: a reply that was lost with its connection leaves
    nobody in doubt. Nodes of this server's address that an earlier session has left, as of a process that was killed,
    are removed, or clients would be sent by them for as long as that session lasts.
    """

    def __init__(self, client: Any, path: str, member: Member) -> None:
        self._client = client
        self._path = path
        self._member = member

    def join(self) -> None:
        """Be there once. Blocks; raises kazoo's errors."""
        if not self._tidy(is_member=True):
            self._client.create(
                f"{self._path}/{_NODE}", self._member.to_json(), ephemeral=True, sequence=True, makepath=True
            )

    def leave(self) -> None:
        """Be there no more. Blocks; raises kazoo's errors."""
        self._tidy(is_member=False)

    def _tidy(self, *, is_member: bool) -> bool:
        """Remove what of this server is there and should not be; whether what should be is."""
        session = self._client.client_id
        if session is None:
            raise SessionExpiredError("there is no connection")
        is_there = False
        for node in self._nodes():
            if node.session == session[0]:
                if is_member and not is_there and node.data == self._member.to_json():
                    is_there = True
                    continue
            elif not self._is_ours(node):
                continue
            with suppress(NoNodeError):
                self._remove(node, is_stale=node.session != session[0])
        return is_there

    def _nodes(self) -> Iterator[_Found]:
        try:
            names = self._client.get_children(self._path)
        except NoNodeError:
            return
        for name in names:
            if name.startswith(_NODE):
                path = f"{self._path}/{name}"
                with suppress(NoNodeError):  # somebody left meanwhile
                    data, stat = self._client.get(path)
                    yield _Found(path, data, stat.ephemeralOwner)

    def _is_ours(self, node: _Found) -> bool:
        try:
            return parse_member(node.data).service == self._member.service
        except ValueError:
            return False

    def _remove(self, node: _Found, *, is_stale: bool) -> None:
        try:
            self._client.delete(node.path)
        except NoAuthError:
            if not is_stale:
                raise
            logger.warning("%s is of an earlier session of this server, and may not be removed by it", node.path)


def acl_of(said: str | Sequence[str]) -> list[ACL]:
    """kazoo's form of the setting: a word for one, or ``scheme:id:permissions`` for each entry."""
    if said == "open-unsafe":
        return list(OPEN_ACL_UNSAFE)
    if said == "everyone-read-creator-all":
        return [*READ_ACL_UNSAFE, *CREATOR_ALL_ACL]
    return [_entry(each) for each in said]


def _entry(said: str) -> ACL:
    scheme, _, rest = said.partition(":")
    identity, _, permissions = rest.rpartition(":")
    return make_acl(scheme, identity, **{_PERMISSIONS[letter]: True for letter in permissions})
