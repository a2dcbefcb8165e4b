"""What one client may do at present: the server's status, the connection limits, and the queues' lists of clients."""

from __future__ import annotations

from kestrel.errors import NotListed, Unavailable
from kestrel.queues.limits import Limits
from kestrel.queues.manager import QueueManager
from kestrel.queues.status import ServerStatus


class Access:
    """Each check returns, or raises `Unavailable` with the reason.

    `identity` is the client's name; None if it has none, and then no list has it.
    """

    def __init__(self, manager: QueueManager, status: ServerStatus) -> None:
        self._manager = manager
        self._status = status
        self.identity: bytes | None = None
        self.refuses_writes = False
        """Whether there were too many connections when this one was made; so for reads."""
        self.refuses_reads = False

    def check_change(self) -> None:
        """Before a command that changes queues: flush, delete, and puts."""
        if not self._status.takes_writes:
            raise Unavailable(f"the server is {self._status.in_force.value}")
        if self.refuses_writes:
            raise Unavailable("too many connections to write on this one")

    def check_put(self, name: bytes) -> None:
        """Before a put to that queue or alias."""
        self.check_change()
        alias = self._manager.aliases.get(name)
        for queue in (name,) if alias is None else alias.queues:
            listed = self._limits(queue).enqueuers
            if listed is not None:
                self._check_listed(listed, "put to", queue)

    def check_get(self, name: bytes) -> None:
        """Before an item of that queue is taken or looked at."""
        if not self._status.takes_reads:
            raise Unavailable(f"the server is {self._status.in_force.value}")
        if self.refuses_reads:
            raise Unavailable("too many connections to read on this one")
        listed = self._limits(name).dequeuers
        if listed is not None:
            self._check_listed(listed, "get from", name)

    def _limits(self, name: bytes) -> Limits:
        queue = self._manager.known(name)  # most are there, and looked up at once
        return Limits(self._manager.settings_for(name)) if queue is None else queue.limits

    def _check_listed(self, listed: tuple[bytes, ...], what: str, queue: bytes) -> None:
        if self.identity not in listed:
            raise NotListed(f"this client may not {what} {queue.decode('latin-1')}")
