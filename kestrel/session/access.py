"""Access checks of one client: the server's status, the connection limits, and the client lists."""

from __future__ import annotations

from kestrel.config.model import Config
from kestrel.errors import NotAuthorized, Unavailable
from kestrel.escaping import show_name
from kestrel.protocols.codec import Codec
from kestrel.queues.queue import Queue
from kestrel.queues.status import ServerStatus
from kestrel.session.session_context import SessionContext


def is_administrator(settings: Config, identity: bytes | None, *, is_trusted: bool) -> bool:
    """Return True if a client named `identity` may send commands about the server. A trusted client always may."""
    return settings.administrators is None or is_trusted or identity in settings.administrators


class Access:
    """The access checks of one connection. Each check returns, or raises `Unavailable` or `NotAuthorized` with the
    reason.

    `subject` is the subject of the client's certificate, or None without one. A trusted client is always an
    administrator.
    """

    def __init__(
        self,
        context: SessionContext,
        status: ServerStatus,
        codec: Codec,
        *,
        is_trusted: bool,
    ) -> None:
        self._context = context
        self._manager = context.manager
        self._status = status
        self._codec = codec
        self._is_trusted = is_trusted
        self.subject: bytes | None = None
        self.refuses_writes = False
        """True if there were too many connections for writes when this one was made."""
        self.refuses_reads = False

    @property
    def identity(self) -> bytes | None:
        """The client's name: the subject of its certificate, or the name that it claims. A client without one is in no
        list.

        A claimed name cannot equal a certificate subject: every subject contains `=`, and a claimed name with `=` is
        ignored.
        """
        if self.subject is not None:
            return self.subject
        claimed = self._codec.client_id
        return claimed if claimed and b"=" not in claimed else None

    def check_administration(self, what: str) -> None:
        """Check for a command about the server, or one that drops all of a queue's items: only administrators may.

        `what` is the command in the message of the error: "only an administrator may ...".
        """
        if not is_administrator(self._context.settings, self.identity, is_trusted=self._is_trusted):
            raise NotAuthorized(f"only an administrator may {what}")

    def check_change(self) -> None:
        """Check that the status and the number of connections allow flush, delete and put."""
        if not self._status.takes_writes:
            raise Unavailable(f"the server is {self._status.in_force.value}")
        if self.refuses_writes:
            raise Unavailable("too many connections to write on this one")

    def check_put(self, name: bytes, queue: Queue | None = None) -> None:
        """Check that the client may put to the queue `name`, or to every queue of the alias `name`.

        `queue` is the queue, if the caller has looked it up.
        """
        if self.refuses_writes or not self._status.takes_writes:
            self.check_change()
        if queue is not None:
            listed = queue.limits.enqueuers
            if listed is not None:
                self._check_listed(listed, "put to", name)
            return
        alias = self._manager.aliases.get(name)
        for each in (name,) if alias is None else alias.queues:
            listed = self._manager.limits_of(each).enqueuers
            if listed is not None:
                self._check_listed(listed, "put to", each)

    def check_get(self, name: bytes, queue: Queue | None = None) -> None:
        """Check that the client may get and peek items of the queue `name`.

        `queue` is the queue, if the caller has looked it up.
        """
        if not self._status.takes_reads:
            raise Unavailable(f"the server is {self._status.in_force.value}")
        if self.refuses_reads:
            raise Unavailable("too many connections to read on this one")
        limits = self._manager.limits_of(name) if queue is None else queue.limits
        listed = limits.dequeuers
        if listed is not None:
            self._check_listed(listed, "get from", name)

    def _check_listed(self, listed: tuple[bytes, ...], what: str, queue: bytes) -> None:
        if self.identity not in listed:
            raise NotAuthorized(f"this client may not {what} {show_name(queue)}")
