"""An HTTP client of a server's admin port, the overview that it returns, and rates computed from two overviews."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import urlsplit

from attrs import frozen

from kestrel.errors import KestrelError
from kestrel.escaping import unescape_name
from kestrel.tls import TlsOptions

COLUMNS: Final = (
    "items",
    "bytes",
    "mem_bytes",
    "oldest_age_msec",
    "waiters",
    "open_transactions",
    "journal_bytes",
    "put_items",
    "get_items_hit",
)
"""The columns of the response that are used, in the order of the fields of `QueueSample`."""

DEFAULT_ADMIN: Final = "http://127.0.0.1:2223"

_DEFAULT_PORT: Final = 2223
_LONGEST: Final = 16 * 1024 * 1024
_LONGEST_ERROR: Final = 4096
_PIECE: Final = 64 * 1024


@frozen
class QueueSample:
    """The statistics of a queue at one moment. `puts` and `gets` count since the queue was created or opened."""

    items: int
    bytes: int
    mem_bytes: int
    oldest_age_ms: int | None
    """Age of the oldest item, or None if it is not known."""
    waiters: int
    open_reads: int
    journal_bytes: int
    puts: int
    gets: int


@frozen
class Overview:
    """The statistics of a server and its queues at one moment. `uptime_ms` is monotonic while the server runs."""

    name: str
    version: str
    build: str
    storage: str
    status: str
    in_force: str
    uptime_ms: int
    figures: Mapping[str, int]
    queues: Mapping[bytes, QueueSample]


def parse_overview(body: bytes) -> Overview:
    """Return the overview in a response to ``/api/overview``. Raise ValueError if it is invalid."""
    try:
        told = json.loads(body)
        server = told["server"]
        columns: list[str] = told["columns"]
        places = [columns.index(column) for column in COLUMNS]
        name_at = columns.index("name")
        texts = ("name", "version", "build", "storage", "status", "in_force")
        return Overview(
            **{name: _checked(str, server[name]) for name in texts},
            uptime_ms=_checked(int, server["uptime_ms"]),
            figures={name: value for name, value in server["figures"].items() if type(value) is int},
            queues={
                unescape_name(row[name_at].encode()): QueueSample(
                    *(_figure(column, row[place]) for column, place in zip(COLUMNS, places, strict=True))
                )
                for row in told["queues"]
            },
        )
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        raise ValueError("its response is not an overview of queues") from None


def _figure(column: str, value: Any) -> Any:
    is_unknown = value is None and column == "oldest_age_msec"
    return None if is_unknown else _checked(int, value)


def _checked(kind: type, value: Any) -> Any:
    if type(value) is not kind:  # a bool is no number
        raise TypeError(value)
    return value


@frozen
class QueueRates:
    """The statistics of a queue, with its puts and gets per second, or None for an unknown rate."""

    name: bytes
    now: QueueSample
    puts: float | None
    gets: float | None


def rows(before: Overview | None, now: Overview) -> list[QueueRates]:
    """Return the rates of each queue in `now`. All rates are unknown without a `before` of the same run."""
    if before is None or now.uptime_ms <= before.uptime_ms:
        return [QueueRates(name, queue, None, None) for name, queue in now.queues.items()]
    passed_s = (now.uptime_ms - before.uptime_ms) / 1000
    found = []
    for name, queue in now.queues.items():
        puts, gets = queue.puts, queue.gets
        earlier = before.queues.get(name)
        # Else the queue is new, or was deleted and created again.
        if earlier is not None and puts >= earlier.puts and gets >= earlier.gets:
            puts, gets = puts - earlier.puts, gets - earlier.gets
        found.append(QueueRates(name, queue, puts / passed_s, gets / passed_s))
    return found


def total(rates: Iterable[float | None]) -> float | None:
    """Return the sum of rates, or None if one of them is unknown."""
    known = 0.0
    for rate in rates:
        if rate is None:
            return None
        known += rate
    return known


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
        port = parts.port  # may raise ValueError, as urlsplit may
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ValueError(f"{url!r} is not an address of an admin port, such as {DEFAULT_ADMIN}")
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.is_https = parts.scheme == "https"
        self._host = parts.hostname
        self._port = _DEFAULT_PORT if port is None else port
        self._path = parts.path.rstrip("/")
        self._context = tls.context() if self.is_https else None
        self._server_name = tls.server_name or parts.hostname
        self._timeout_s = timeout_s
        self._seconds = seconds

    def overview(self) -> Overview:
        """Return the current state of the server and its queues. It blocks. Raise `AdminFailed`."""
        deadline_s = self._seconds() + self._timeout_s
        connection = HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.connect()
            if self._context is not None:
                # HTTPSConnection cannot verify another name than the host.
                connection.sock = self._context.wrap_socket(connection.sock, server_hostname=self._server_name)
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


def _refusal(response: HTTPResponse) -> str:
    """Return the HTTP status with the error message in the response, or with the HTTP reason."""
    try:
        error = json.loads(response.read(_LONGEST_ERROR))["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        error = response.reason
    return f"it responds with {response.status}: {error}"
