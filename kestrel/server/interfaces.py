"""What stands in for the built-in server sets: the contract of ``serverSetInitializer``."""

from __future__ import annotations

from zope.interface import Interface


class IServerSet(Interface):
    """One server in one of the two sets. Both methods block, are called in a thread, never at the same time, and may
    raise anything: they are called again after a pause, whenever the session is another one, and once a minute.
    """

    def join() -> None:
        """Have the server in the set, once, as long as this session lasts. It may be there already."""

    def leave() -> None:
        """Have it out of the set. It may be out already."""
