"""The files of the dashboard, read from the package. No other files are served."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError

PIECE_BYTES: Final = 64 * 1024

_TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def _all_files() -> Mapping[tuple[str, ...], bytes]:
    """Return the contents of all files of the dashboard, by the parts of their paths."""
    found: dict[tuple[str, ...], bytes] = {}

    def look(folder: Traversable, path: tuple[str, ...]) -> None:
        for each in folder.iterdir():
            if each.is_dir():
                look(each, (*path, each.name))
            elif each.name.rpartition(".")[2] in _TYPES:
                found[*path, each.name] = each.read_bytes()

    look(files("kestrel.admin") / "pages", ())
    return found


def static_file(request: AdminRequest, *path: bytes) -> AdminResponse:
    """Return a file of the dashboard. Raise `HttpError` if it does not exist."""
    names = tuple(part.decode("latin-1") for part in path)
    data = _all_files().get(names)
    if data is None:
        raise HttpError(404, "there is no such page")
    pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    return AdminResponse(pieces, _TYPES[names[-1].rpartition(".")[2]], headers={"Cache-Control": "no-cache"})
