"""A request to the admin port and its answer, without HTTP around them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from attrs import field, frozen

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


@frozen
class AdminRequest:
    """One request. `path` has the parts between slashes, decoded; `query` all values of each name."""

    method: str
    path: tuple[bytes, ...]
    query: Mapping[str, Sequence[bytes]]
    may_administer: bool = False
    """Whether this client may change the server."""
    is_cross_site: bool = False
    """Whether the page of another site has sent this, which may look, but changes nothing."""

    def check_same_site(self) -> None:
        """Raise `HttpError` where the page of another site has sent this."""
        if self.is_cross_site:
            raise HttpError(403, "a page of another site has sent this")

    def one(self, name: str) -> bytes | None:
        """The value of that name, the last one that was given; None if there is none."""
        values = self.query.get(name)
        return values[-1] if values else None


@frozen
class AdminResponse:
    """What is answered. `pieces` are made one at a time, each in a few milliseconds; an empty one is a pause.

    `done` is called when the answer has left, or never will.
    """

    pieces: Iterable[bytes]
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(factory=dict)
    done: Callable[[], None] = lambda: None


class HttpError(Exception):
    """A request that is not carried out: an HTTP status, and a sentence for whoever asked."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}


def json_response(value: object, status: int = 200) -> AdminResponse:
    """A small answer."""
    return AdminResponse((json_bytes(value),), status=status)


def text_response(text: str) -> AdminResponse:
    """A small answer for people."""
    return AdminResponse((text.encode(),), TEXT)


def json_bytes(value: object) -> bytes:
    """That as JSON, as short as it gets."""
    return json.dumps(value, separators=(",", ":")).encode()


def json_list(lists: Iterable[Sequence[object]]) -> Iterable[bytes]:
    """One list as JSON, of parts that are made one at a time."""
    return _joined(lists, b"[", b"]")


def json_object(objects: Iterable[Mapping[str, object]]) -> Iterable[bytes]:
    """One object as JSON, of parts that are made one at a time."""
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
