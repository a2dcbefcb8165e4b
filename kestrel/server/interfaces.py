"""The interface of server sets that ``serverSetInitializer`` creates."""

from __future__ import annotations

from zope.interface import Interface


class IServerSet(Interface):
    """The membership of one server in one server set.

    Both methods are called in a thread, never at the same time, and may block. They may raise any exception. They are
    called again after a failure, in each new session, and once a minute.
    """

    def join() -> None:
        """Make the server a member for the duration of this session. It may already be one."""

    def leave() -> None:
        """Remove the server from the set. It may already be removed."""
