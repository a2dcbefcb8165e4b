"""The admin port of a server over HTTP: its listeners, connections and limits, and the identity of clients."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Mapping
from io import BytesIO
from typing import Any, Final
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from OpenSSL import SSL
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IHandshakeListener, IPushProducer, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.internet.task import Cooperator
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, HTTPFactory, Request, datetimeToString
from twisted.web.http_headers import Headers
from zope.interface import implementer

from kestrel.address import show_address
from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError, json_response
from kestrel.admin.routes import Routes
from kestrel.admin.server_view import ServerView
from kestrel.admin.time_slices import ResponseProducer, make_cooperator
from kestrel.errors import KestrelError
from kestrel.net.connection import certificate_subject


def check_host(headers: Headers, more_names: Collection[str]) -> None:
    """Raise `HttpError` unless the Host header is an address, this machine's name, localhost or one of `more_names`.

    A request without a Host header is accepted, since browsers always send one.
    """
    given = _values(headers, b"host")
    if not given:
        return
    if len(given) > 1:
        raise HttpError(400, "the request has more than one Host header")
    name = _host_name(given[0])
    if name in ("localhost", "") or name.endswith(".localhost") or _is_address(name):
        return
    own = socket.gethostname().lower()
    if name in (own, own.partition(".")[0]) or name in {each.lower() for each in more_names}:
        return
    raise HttpError(403, f"{name} is not a name of this server; to allow it, add it to hostNames in the table [admin]")


def is_cross_site(headers: Headers) -> bool:
    """Return whether a page of another site sent the request.

    Browsers say so in the Sec-Fetch-Site or Origin header. A request without these headers comes from a program.
    """
    hosts = [host.lower() for host in _values(headers, b"host") if host]
    return any(site not in ("same-origin", "none") for site in _values(headers, b"sec-fetch-site")) or any(
        _authority(origin) not in hosts for origin in _values(headers, b"origin")
    )


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for value in headers.getRawHeaders(name) or ()]


def _host_name(host: str) -> str:
    """Return the host name in a Host header, without its port and in lower case."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:
        raise HttpError(400, "the Host header is invalid") from None


def _authority(origin: str) -> str | None:
    """Return the host and port in an Origin header, an empty string if it has none, or None if it is invalid."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


log = Logger(__name__)

Handle = Callable[[AdminRequest], "AdminResponse | Deferred[AdminResponse]"]

MAX_BODY_BYTES: Final = 64 * 1024
"""Limit of a request's body, which is the item of a put."""
MAX_READ_BYTES: Final = 2 * MAX_BODY_BYTES
"""Bytes of a body that are read before the connection is aborted."""
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
"""Headers of every response. They keep other sites from showing the dashboard in a frame (clickjacking)."""


class AdminHttpRequest(Request):
    """A request as twisted.web reads it, with 16 KiB of request line and headers at most."""

    channel: AdminChannel
    _body_bytes = 0

    @property
    def _http(self) -> Any:
        """This request, typed as Any for attributes that Twisted does not declare."""
        return self

    def gotLength(self, length: int | None) -> None:
        """Prepare for the body in memory, since Twisted would store a body of unknown length in a file.

        Twisted sees no body. It would parse one that claims to be a form.
        """
        self._http.content = BytesIO()
        self._body = bytearray()

    def handleContentChunk(self, data: bytes) -> None:
        """Keep a part of the body up to `MAX_BODY_BYTES`. Abort the connection after `MAX_READ_BYTES`."""
        self._body_bytes += len(data)
        if self._body_bytes <= MAX_BODY_BYTES:
            self._body += data
        elif self._body_bytes > MAX_READ_BYTES:
            self.channel.abort()

    def process(self) -> None:
        self._set_headers(SAFE_HEADERS)
        answering: Deferred[AdminResponse] = succeed(None).addCallback(lambda _: self._answer())
        answering.addErrback(self._refused).addCallback(self._send).addErrback(self._broke_off)

    def _set_headers(self, headers: Mapping[str, str]) -> None:
        for name, value in headers.items():
            self.responseHeaders.setRawHeaders(name, [value])

    def _answer(self) -> AdminResponse | Deferred[AdminResponse]:
        site = self.channel.site
        if self._body_bytes > MAX_BODY_BYTES:
            raise HttpError(413, f"the request's body is longer than {MAX_BODY_BYTES} bytes")
        check_host(self.requestHeaders, site.server_view.config.admin.host_names)
        method = self.method.decode("latin-1")
        if method not in ("GET", "HEAD", "POST"):
            raise HttpError(405, f"{method} is none of GET, HEAD and POST", {"Allow": "GET, HEAD, POST"})
        raw_path, _, raw_query = self.uri.partition(b"?")
        path = tuple(unquote_to_bytes(part) for part in raw_path.split(b"/")[1:])
        may_administer = site.server_view.may_administer(
            self.channel.identity, is_trusted=site.is_trusted, has_token=self._has_token()
        )
        is_foreign = is_cross_site(self.requestHeaders)
        admin_request = AdminRequest(
            "GET" if method == "HEAD" else method,
            path,
            _fields(raw_query),
            may_administer,
            is_foreign,
            bytes(self._body),
        )
        if method == "POST":
            admin_request.check_same_site()
            if not may_administer:
                raise HttpError(403, "only an administrator may do that")
        return site.handle(admin_request)

    def _has_token(self) -> bool:
        """Return whether the request has an administrator's token. Raise `HttpError` if it has a wrong one."""
        given = _values(self.requestHeaders, b"authorization")
        if not given:
            return False
        scheme, _, token = given[0].partition(" ")
        if scheme.lower() != "bearer" or not self.channel.site.server_view.is_token(token.encode("latin-1")):
            raise HttpError(401, "the token is not valid", {"WWW-Authenticate": "Bearer"})
        return True

    def _refused(self, failure: Failure) -> AdminResponse:
        error = failure.value
        if isinstance(error, HttpError):
            self._set_headers(error.headers)
            if error.status in (401, 403) and not self._disconnected:
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
        log.failure("A response of the admin port failed", failure)
        if not self._disconnected:
            self.channel.abort()


def _failed() -> AdminResponse:
    return json_response({"error": "the request failed; the server's log has the reason"}, 500)


def _fields(query: bytes) -> dict[str, list[bytes]]:
    """Return all values of each parameter of a query. Raise `HttpError` if there are too many."""
    try:
        fields = parse_qs(
            query.decode("latin-1"), keep_blank_values=True, encoding="latin-1", max_num_fields=MAX_QUERY_FIELDS
        )
    except ValueError:
        raise HttpError(400, f"the query has more than {MAX_QUERY_FIELDS} parameters") from None
    return {name: [value.encode("latin-1") for value in values] for name, values in fields.items()}


@implementer(IHandshakeListener)
class AdminChannel(HTTPChannel):
    """A connection to the admin port. It is closed after `IDLE_S` seconds without a complete request."""

    requestFactory = AdminHttpRequest
    site: AdminSite
    identity: bytes | None = None
    """Subject of the client's verified certificate, or None without a certificate."""

    def handshakeCompleted(self) -> None:
        """Read the client's identity from its certificate, which TLS has verified."""
        transport: Any = self.transport
        certificate = transport.getPeerCertificate()
        if certificate is not None:
            self.identity = certificate_subject(certificate)

    def resetTimeout(self) -> None:
        """Do nothing, so that a part of a request does not extend the time for the rest."""

    def headerReceived(self, line: bytes) -> bool:
        """Refuse a transfer encoding other than `chunked`, and any in HTTP/1.0, since proxies may read it differently.

        Twisted refuses a second `chunked` itself, but ignores `identity`, which RFC 9112 has removed.
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
        """Answer a line that is too long with 431 and close the connection."""
        transport: Any = self.transport
        transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\n\r\n")
        self.loseConnection()  # type: ignore[no-untyped-call]

    def refused(self, what: str) -> None:
        """Log that this client was refused `what`."""
        transport: Any = self.transport
        peer = "gone" if transport is None else show_address(transport.getPeer())
        self.site.server_view.refusal_log.log(peer, self.identity, f"admin: {what}")

    def connectionMade(self) -> None:
        super().connectionMade()  # type: ignore[no-untyped-call]
        self.site.channels.add(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Remove the connection from its site, and log a failed TLS handshake."""
        self.site.channels.discard(self)
        if isinstance(reason.value, SSL.Error):
            self.refused("TLS handshake failed")
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        """Register the producer of a response. Pause it if the transport is full, since TLS does not repeat that."""
        super().registerProducer(producer, streaming)  # type: ignore[no-untyped-call]
        if self._waitingForTransport:
            producer.pauseProducing()

    def hang_up(self) -> None:
        """Close the connection after the current response, or at once if there is no complete request."""
        if self._handlingRequest:
            self.persistent = 0
        else:
            self.loseConnection()  # type: ignore[no-untyped-call]

    def abort(self) -> None:
        transport: Any = self.transport
        if transport is not None:
            transport.abortConnection()


class AdminSite(HTTPFactory):
    """The factory for connections to the admin port.

    If `is_trusted`, its clients are administrators and have no limit of connections. `cooperator` schedules the work
    of all responses.
    """

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
        self.channels: set[AdminChannel] = set()
        """Open connections."""

    def startFactory(self) -> None:
        """Do nothing; the base class would open a log of requests."""

    def stopFactory(self) -> None:
        """Do nothing; the base class would close a log of requests."""

    def log(self, request: Request) -> None:
        """Do nothing; only refusals and changes are logged."""

    def buildProtocol(self, addr: IAddress) -> AdminChannel | None:  # type: ignore[override]  # Protocol there
        """Return a connection, or None if there are too many connections or the server is shutting down."""
        if not self._is_open:
            return None
        if len(self.channels) >= MAX_CONNECTIONS and not self.is_trusted:
            self.server_view.refusal_log.log(
                show_address(addr), None, f"admin: too many connections; limit={MAX_CONNECTIONS}"
            )
            return None
        channel: Any = AdminChannel()  # type: ignore[no-untyped-call]
        channel.site = channel.factory = self
        channel.timeOut = IDLE_S
        channel.callLater = self.clock.callLater
        made: AdminChannel = channel
        return made

    def hang_up(self) -> None:
        """Stop accepting connections, and close each open one after its current response."""
        self._is_open = False
        for channel in list(self.channels):
            channel.hang_up()

    def abort(self) -> None:
        for channel in list(self.channels):
            channel.abort()


class AdminPort:
    """The listeners for admin clients, and the statistics that are recorded for them."""

    def __init__(self, server_view: ServerView, clock: IReactorTime) -> None:
        self._server_view = server_view
        self._cooperator = make_cooperator(clock)
        self._routes = Routes(self._server_view, clock, self._cooperator)
        self._clock = clock
        self._sites: list[AdminSite] = []

    def site(self, *, is_trusted: bool = False) -> AdminSite:
        """Return a factory for admin connections. Its clients are administrators if `is_trusted`."""
        site = AdminSite(self._server_view, self._routes.handle, self._clock, self._cooperator, is_trusted=is_trusted)
        self._sites.append(site)
        return site

    def start(self) -> None:
        """Begin to record statistics, now that the queues are loaded."""
        self._routes.start()

    def hang_up(self) -> None:
        """Stop serving: finish requests in progress, and accept no others."""
        self._routes.stop()
        self._server_view.transfers.stop()
        for site in self._sites:
            site.hang_up()

    def abort(self) -> None:
        """Drop the remaining connections, and end the work for their responses."""
        for site in self._sites:
            site.abort()
        self._cooperator.stop()
