"""Requests to the admin port and their responses, independent of HTTP connections."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from attrs import field, frozen

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"

MAX_DIGITS: Final = 18


@frozen
class AdminRequest:
    """A request. `path` has the decoded parts between slashes; `query` has all values of each parameter."""

    method: str
    path: tuple[bytes, ...]
    query: Mapping[str, Sequence[bytes]]
    may_administer: bool = False
    """True if the client is an administrator and may change the server."""
    is_cross_site: bool = False
    """True if a page of another site sent the request. Such a request may not change the server."""
    body: bytes = b""

    def check_same_site(self) -> None:
        """Raise `HttpError` if a page of another site sent the request."""
        if self.is_cross_site:
            raise HttpError(403, "a page of another site sent this request")

    def number(self, name: str, default: int) -> int:
        """Return the query parameter `name`, a whole number. Raise `HttpError` if it is not one of 1 to 18 digits."""
        value = self.one(name)
        if value is None:
            return default
        if not (value.isdigit() and len(value) <= MAX_DIGITS):
            raise HttpError(400, f"the parameter {name} must be a whole number of at most {MAX_DIGITS} digits")
        return int(value)

    def one(self, name: str) -> bytes | None:
        """Return the last value of the query parameter `name`, or None if it is missing."""
        values = self.query.get(name)
        return values[-1] if values else None


@frozen
class AdminResponse:
    """A response. `pieces` makes the body one piece at a time, each in a few milliseconds.

    An empty piece lets other work run first. `done` is called when the response was sent or can no longer be sent.
    """

    pieces: Iterable[bytes]
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(factory=dict)
    done: Callable[[], None] = lambda: None


class HttpError(Exception):
    """A refused request: the HTTP status and the message of the response."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}


def json_response(value: object, status: int = 200) -> AdminResponse:
    """Return a response with `value` as JSON."""
    return AdminResponse((json_bytes(value),), status=status)


def text_response(text: str) -> AdminResponse:
    """Return a plain text response."""
    return AdminResponse((text.encode(),), TEXT)


def json_bytes(value: object) -> bytes:
    """Return `value` as JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def json_list(lists: Iterable[Sequence[object]]) -> Iterable[bytes]:
    """Yield the JSON of one list that is the concatenation of `lists`; an empty piece for each empty list."""
    return _joined(lists, b"[", b"]")


def json_object(objects: Iterable[Mapping[str, object]]) -> Iterable[bytes]:
    """Yield the JSON of one object that is the union of `objects`; an empty piece for each empty object."""
    return _joined(objects, b"{", b"}")


def _joined(parts: Iterable[Collection[object]], begin: bytes, end: bytes) -> Iterable[bytes]:
    before = begin
    for part in parts:
        if part:
            yield before + json_bytes(part)[1:-1]
            before = b","
        else:
            yield b""
    yield begin + end if before == begin else end
