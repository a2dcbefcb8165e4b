"""The keys of `kestrel-cli top`."""

from __future__ import annotations

from typing import Final

from attrs import evolve

from kestrel.tools.top.screen import SORTS, ScreenView

_END: Final = 10**9
_ENTER: Final = ("\n", "\r", "enter")
_BACKSPACE: Final = ("\b", "\x7f", "backspace")
_LONGEST_FILTER: Final = 200


def apply_key(key: str, view: ScreenView, page: int, last: int) -> ScreenView | None:
    """Return the view after a key, or None to quit. `key` is a character or a name such as ``down``.

    `page` is the number of queues on a page. `last` is the largest offset of the view.
    """
    if view.is_typing:
        return _typed(key, view)
    if view.is_helping:
        return None if key == "q" else evolve(view, is_helping=False)
    moved = {"j": 1, "down": 1, "k": -1, "up": -1, " ": page, "npage": page, "ppage": -page}
    moved |= {"G": _END, "end": _END, "g": -_END, "home": -_END}
    if key in moved:
        return evolve(view, offset=max(0, min(min(view.offset, last) + moved[key], last)))
    match key:
        case "q":
            return None
        case "s" | "S":
            place = SORTS.index(view.sort) + (1 if key == "s" else -1)
            return evolve(view, sort=SORTS[place % len(SORTS)], offset=0)
        case "r":
            return evolve(view, is_reversed=not view.is_reversed, offset=0)
        case "p":
            return evolve(view, is_paused=not view.is_paused)
        case "h" | "?":
            return evolve(view, is_helping=True)
        case "/":
            return evolve(view, is_typing=True, offset=0)
        case "\x1b":
            return evolve(view, filter="", offset=0)
    return view


def _typed(key: str, view: ScreenView) -> ScreenView:
    if key in _ENTER:
        return evolve(view, is_typing=False)
    if key == "\x1b":
        return evolve(view, is_typing=False, filter="")
    if key in _BACKSPACE:
        return evolve(view, filter=view.filter[:-1])
    if len(key) == 1 and key.isprintable() and len(view.filter) < _LONGEST_FILTER:
        return evolve(view, filter=view.filter + key, offset=0)
    return view
