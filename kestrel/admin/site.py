"""HTTP around the admin port: connections, their bounds, and who is at the other end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final
from urllib.parse import parse_qs, unquote_to_bytes

from OpenSSL import SSL
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IHandshakeListener, IPushProducer, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.internet.task import Cooperator
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, HTTPFactory, Request, datetimeToString
from zope.interface import implementer

from kestrel.admin.access_checks import check_host, is_cross_site
from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError, json_response
from kestrel.admin.response_producer import ResponseProducer
from kestrel.admin.server_view import ServerView
from kestrel.errors import KestrelError
from kestrel.net.certificate_subject import certificate_subject

log = Logger(__name__)

Handle = Callable[[AdminRequest], "AdminResponse | Deferred[AdminResponse]"]

MAX_BODY_BYTES: Final = 4096
"""Of what is posted nothing is looked at, or kept."""
MAX_READ_BYTES: Final = 64 * 1024
"""Of a body that is too large, before it is hung up on."""
MAX_QUERY_FIELDS: Final = 200
MAX_CONNECTIONS: Final = 100
IDLE_S: Final = 30
SAFE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""No other site's page may show these in a frame and have people press their buttons."""


class AdminHttpRequest(Request):
    """One request, as twisted.web reads it: lines and headers of 16 KiB in all."""

    channel: AdminChannel
    _body_bytes = 0

    @property
    def _http(self) -> Any:
        """The same, for what Twisted has no types for."""
        return self

    def gotLength(self, length: int | None) -> None:
        """The headers are there; Twisted would keep a body whose length is not known in a file."""
        self._http.content = BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        """A part of the body, which nobody reads."""
        self._body_bytes += len(data)
        if self._body_bytes > MAX_READ_BYTES:
            self.channel.abort()

    def process(self) -> None:
        """The request is there: carry it out."""
        self._set_headers(SAFE_HEADERS)
        answering: Deferred[AdminResponse] = succeed(None).addCallback(lambda _: self._answer())
        answering.addErrback(self._refused).addCallback(self._send).addErrback(self._broke_off)

    def _set_headers(self, headers: Mapping[str, str]) -> None:
        for name, value in headers.items():
            self.responseHeaders.setRawHeaders(name, [value])

    def _answer(self) -> AdminResponse | Deferred[AdminResponse]:
        site = self.channel.site
        if self._body_bytes > MAX_BODY_BYTES:
            raise HttpError(413, f"a body has {MAX_BODY_BYTES} bytes at most")
        check_host(self.requestHeaders, site.server_view.config.admin.host_names)
        method = self.method.decode("latin-1")
        if method not in ("GET", "HEAD", "POST"):
            raise HttpError(405, f"{method} is none of GET, HEAD and POST", {"Allow": "GET, HEAD, POST"})
        raw_path, _, raw_query = self.uri.partition(b"?")
        path = tuple(unquote_to_bytes(part) for part in raw_path.split(b"/")[1:])
        may_administer = site.server_view.may_administer(self.channel.identity, is_trusted=site.is_trusted)
        is_foreign = is_cross_site(self.requestHeaders)
        admin_request = AdminRequest(
            "GET" if method == "HEAD" else method, path, _fields(raw_query), may_administer, is_foreign
        )
        if method == "POST":
            admin_request.check_same_site()
            if not may_administer:
                raise HttpError(403, "only an administrator may do that")
        return site.handle(admin_request)

    def _refused(self, failure: Failure) -> AdminResponse:
        error = failure.value
        if isinstance(error, HttpError):
            self._set_headers(error.headers)
            if error.status == 403 and not self._disconnected:
                self.channel.refused(str(error))
            return json_response({"error": str(error)}, error.status)
        if isinstance(error, KestrelError):
            return json_response({"error": str(error)}, 503)
        log.failure("A request to the admin port failed", failure)
        return _failed()

    def _send(self, answer: AdminResponse) -> None:
        if self._disconnected:
            answer.done()
            return
        self.setResponseCode(answer.status)
        date = datetimeToString().decode("ascii")
        self._set_headers({"Content-Type": answer.content_type, "Date": date, **answer.headers})
        pieces = () if self.method == b"HEAD" else answer.pieces
        site = self.channel.site
        ResponseProducer(
            self,
            pieces,
            answer.done,
            lambda: self._send(_failed()),
            site.cooperator,
            site.clock,
            site.server_view.manager.memory_limit,
        )

    def _broke_off(self, failure: Failure) -> None:
        log.failure("An answer of the admin port broke off", failure)
        if not self._disconnected:
            self.channel.abort()


def _failed() -> AdminResponse:
    return json_response({"error": "it failed; the server's log says why"}, 500)


def _fields(query: bytes) -> dict[str, list[bytes]]:
    """All values of each name in a query."""
    try:
        fields = parse_qs(
            query.decode("latin-1"), keep_blank_values=True, encoding="latin-1", max_num_fields=MAX_QUERY_FIELDS
        )
    except ValueError:
        raise HttpError(400, f"more than {MAX_QUERY_FIELDS} values are asked about") from None
    return {name: [value.encode("latin-1") for value in values] for name, values in fields.items()}


@implementer(IHandshakeListener)
class AdminChannel(HTTPChannel):
    """A connection of the admin port. One that asks for nothing in half a minute is closed."""

    requestFactory = AdminHttpRequest
    site: AdminSite
    identity: bytes | None = None
    """The subject of the client's certificate, verified; None without one."""

    def handshakeCompleted(self) -> None:
        """TLS has begun, and what the client said of itself is verified."""
        transport: Any = self.transport
        certificate = transport.getPeerCertificate()
        if certificate is not None:
            self.identity = certificate_subject(certificate)

    def resetTimeout(self) -> None:
        """Nothing: that a part of a request has come buys no time for the rest."""

    def headerReceived(self, line: bytes) -> bool:
        """Refuse a transfer encoding that proxies may read differently: one that is not `chunked`, or in HTTP/1.0.

        Twisted refuses a second `chunked`, but ignores `identity`, which RFC 9112 no longer has.
        """
        http: Any = self
        name, _, value = line.partition(b":")
        if name.lower() == b"transfer-encoding" and (
            value.strip(b" \t").lower() != b"chunked" or http._version == b"HTTP/1.0"
        ):
            http._respondToBadRequestAndDisconnect()
            return False
        return bool(super().headerReceived(line))  # type: ignore[no-untyped-call]

    def lineLengthExceeded(self, line: bytes) -> None:
        """A line does not end."""
        transport: Any = self.transport
        transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\n\r\n")
        self.loseConnection()  # type: ignore[no-untyped-call]

    def refused(self, what: str) -> None:
        """Say in the log who was refused what."""
        transport: Any = self.transport
        peer = "gone" if transport is None else str(transport.getPeer())
        self.site.server_view.refusal_log.log(peer, self.identity, f"admin: {what}")

    def connectionMade(self) -> None:
        """A client came."""
        super().connectionMade()  # type: ignore[no-untyped-call]
        self.site.opened(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The client is gone."""
        self.site.closed(self)
        if isinstance(reason.value, SSL.Error):
            self.refused("TLS could not begin")
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        """An answer begins. A transport that is full already need not say so again: TLS does not."""
        super().registerProducer(producer, streaming)  # type: ignore[no-untyped-call]
        if self._waitingForTransport:
            producer.pauseProducing()

    def hang_up(self) -> None:
        """Close when the answer that is under way has left. A request that has not come whole is not waited for."""
        if self._handlingRequest:
            self.persistent = 0
        else:
            self.loseConnection()  # type: ignore[no-untyped-call]

    def abort(self) -> None:
        """Drop the connection."""
        transport: Any = self.transport
        if transport is not None:
            transport.abortConnection()


class AdminSite(HTTPFactory):
    """The admin port of one endpoint. Those who are trusted are administrators; `cooperator` makes all answers."""

    noisy = False

    def __init__(
        self,
        server_view: ServerView,
        handle: Handle,
        clock: IReactorTime,
        cooperator: Cooperator,
        *,
        is_trusted: bool,
    ) -> None:
        super().__init__(timeout=IDLE_S, reactor=clock)
        self.server_view = server_view
        self.handle = handle
        self.clock = clock
        self.cooperator = cooperator
        self.is_trusted = is_trusted
        self._is_open = True
        self._channels: set[AdminChannel] = set()

    def startFactory(self) -> None:
        """Nothing: requests are not logged one by one."""

    def stopFactory(self) -> None:
        """Nothing, for the same reason."""

    def log(self, request: Request) -> None:
        """Nothing: what was refused stands in the log, and what was changed."""

    def buildProtocol(self, addr: IAddress) -> AdminChannel | None:  # type: ignore[override]  # Protocol there
        """A connection for a client that came; none when there are too many, or the server stops."""
        if not self._is_open:
            return None
        if len(self._channels) >= MAX_CONNECTIONS and not self.is_trusted:
            self.server_view.refusal_log.log(str(addr), None, f"admin: too many connections; limit={MAX_CONNECTIONS}")
            return None
        channel: Any = AdminChannel()  # type: ignore[no-untyped-call]
        channel.site = channel.factory = self
        channel.timeOut = IDLE_S
        channel.callLater = self.clock.callLater
        made: AdminChannel = channel
        return made

    def opened(self, channel: AdminChannel) -> None:
        """A connection is there."""
        self._channels.add(channel)

    def closed(self, channel: AdminChannel) -> None:
        """A connection is gone."""
        self._channels.discard(channel)

    def hang_up(self) -> None:
        """The server stops: answers that are under way leave, and that is all."""
        self._is_open = False
        for channel in list(self._channels):
            channel.hang_up()

    def abort(self) -> None:
        """Drop those who have not gone."""
        for channel in list(self._channels):
            channel.abort()
