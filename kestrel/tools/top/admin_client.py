"""An HTTP client of a server's admin port."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

from kestrel.errors import KestrelError
from kestrel.tls import TlsOptions
from kestrel.tools.top.overview import Overview, parse_overview

DEFAULT_ADMIN: Final = "http://127.0.0.1:2223"

_DEFAULT_PORT: Final = 2223
_LONGEST: Final = 16 * 1024 * 1024
_LONGEST_ERROR: Final = 4096
_PIECE: Final = 64 * 1024


class AdminFailed(KestrelError):
    """A request to the admin port that failed. Its text continues a sentence that begins with the address."""

    def __init__(self, why: str, cause: Exception | None = None) -> None:
        super().__init__(why)
        self.cause = cause


class AdminClient:
    """A client of the admin port at ``http://HOST:PORT``. Raise ValueError for an invalid address.

    With ``https``, the server's certificate is verified with the options in `tls`. `seconds` is a monotonic clock.
    """

    def __init__(self, url: str, tls: TlsOptions, timeout_s: float, seconds: Callable[[], float]) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        # May raise ValueError, as urlsplit may.
        port = parts.port
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ValueError(f"{url!r} is not an address of an admin port, such as {DEFAULT_ADMIN}")
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.is_https = parts.scheme == "https"
        self._host = parts.hostname
        self._port = _DEFAULT_PORT if port is None else port
        self._path = parts.path.rstrip("/")
        self._context = tls.context() if self.is_https else None
        self._server_name = tls.server_name
        self._timeout_s = timeout_s
        self._seconds = seconds

    def overview(self) -> Overview:
        """Return the current state of the server and its queues. It blocks. Raise `AdminFailed`."""
        deadline_s = self._seconds() + self._timeout_s
        connection = self._connection()
        try:
            connection.request("GET", self._path + "/api/overview", headers={"Connection": "close"})
            with connection.getresponse() as response:
                if response.status != http.client.OK:
                    raise AdminFailed(_refusal(response))
                return parse_overview(self._body(response, deadline_s))
        except TimeoutError as error:
            raise AdminFailed(f"no answer within {self._timeout_s:g} s", error) from error
        except OSError as error:
            raise AdminFailed(error.strerror or str(error), error) from error
        except HTTPException as error:
            raise AdminFailed("its response is not HTTP", error) from error
        except ValueError as error:
            raise AdminFailed(str(error), error) from error
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        if self._context is None:
            return HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        if self._server_name is None:
            return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._context)
        return _NamedHttpsConnection(self._host, self._port, self._timeout_s, self._context, self._server_name)

    def _body(self, response: HTTPResponse, deadline_s: float) -> bytes:
        body = bytearray()
        while piece := response.read1(_PIECE):
            body += piece
            if len(body) > _LONGEST:
                raise AdminFailed(f"its response is longer than {_LONGEST >> 20} MiB")
            if self._seconds() > deadline_s:
                raise TimeoutError
        if response.length:
            raise AdminFailed("it disconnected in the middle of its response")
        return bytes(body)


class _NamedHttpsConnection(HTTPSConnection):
    """An HTTPS connection that verifies the certificate for a name other than the host."""

    def __init__(self, host: str, port: int, timeout_s: float, context: ssl.SSLContext, name: str) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._own_context = context
        self._name = name

    def connect(self) -> None:
        """Connect and verify that the certificate is for the given name."""
        HTTPConnection.connect(self)
        self.sock = self._own_context.wrap_socket(self.sock, server_hostname=self._name)


def _refusal(response: HTTPResponse) -> str:
    """Return the HTTP status with the error message in the response, or with the HTTP reason."""
    try:
        error = json.loads(response.read(_LONGEST_ERROR))["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        error = response.reason
    return f"it responds with {response.status}: {error}"
