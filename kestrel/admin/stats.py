"""The calls that Kestrel's admin port had: its figures, and what it said of itself."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from threading import enumerate as all_threads
from typing import Final

from kestrel.admin.asked import JSON, TEXT, Answer, Asked, Refusal, as_json, as_text, json_object
from kestrel.admin.listeners import Listeners
from kestrel.admin.ostrich import Figures, gathering, sections
from kestrel.admin.watched import Watched


def ping(watched: Watched, asked: Asked) -> Answer:
    """Whether somebody is there."""
    return as_text("pong\n") if _wants_text(asked) else as_json({"response": "pong"})


def server_info(watched: Watched, asked: Asked) -> Answer:
    """Which release of what this is, and since when it runs."""
    uptime_s = watched.control.uptime_s()
    started_s = watched.manager.now_ms() / 1000 - uptime_s
    info = {
        "build": "kestrel",
        "build_branch_name": "unknown",
        "build_last_few_commits": ["unknown"],
        "build_revision": "unknown",
        "name": "kestrel",
        "start_time": time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(started_s)),
        "uptime": uptime_s * 1000,
        "version": watched.control.version,
    }
    if not _wants_text(asked):
        return as_json(info)
    return as_text("".join(f"{name}: {value}\n" for name, value in info.items()))


MAX_ANSWERS: Final = 8
"""Answers about periods and namespaces under way at once. Each may hold figures that are no longer kept otherwise."""


def stats(listeners: Listeners, watched: Watched, asked: Asked) -> Answer:
    """Return all figures: since the start, of the last `period` of seconds, or since a `namespace` was last used.

    Only names that begin with `prefix`, if that is given. Figures since the start are read while the answer is sent:
    each is as it is then.
    """
    period, namespace = asked.one("period"), asked.one("namespace")
    prefix = (asked.one("prefix") or b"").decode("latin-1")
    write = _as_text if _wants_text(asked) else _as_json
    content_type = TEXT if _wants_text(asked) else JSON
    if period is None and namespace is None:
        return Answer(write(gathering(watched), prefix), content_type)
    asked.check_same_site()  # what is remembered is bounded
    if listeners.answers >= MAX_ANSWERS:
        raise Refusal(503, f"{MAX_ANSWERS} such answers are on their way already; try again")
    gathered = listeners.of_namespace(namespace or b"") if period is None else listeners.of_period(period)
    listeners.answers += 1

    def done() -> None:
        listeners.answers -= 1

    return Answer(write(gathered, prefix), content_type, done=done)


def _wants_text(asked: Asked) -> bool:
    return asked.path[-1].endswith(b".txt")


def _as_json(gathered: Iterator[Figures | None], prefix: str) -> Iterator[bytes]:
    for figures in gathered:
        if figures is None:
            yield b""
            continue
        before = b"{"
        for name, parts in sections(figures, prefix):
            yield before + f'"{name}":'.encode()
            yield from json_object(parts)
            before = b","
        yield b"}"


def _as_text(gathered: Iterator[Figures | None], prefix: str) -> Iterator[bytes]:
    for figures in gathered:
        if figures is None:
            yield b""
            continue
        for name, parts in sections(figures, prefix):
            yield f"{name}:\n".encode()
            for part in parts:
                yield "".join(f"  {key}: {_shown(value)}\n" for key, value in part.items()).encode()


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name}={number}" for name, number in value.items()) + ")"
    return str(value)


LONGEST_STACK: Final = 100


def threads(watched: Watched, asked: Asked) -> Answer:
    """What every thread of the process is doing."""
    frames = sys._current_frames()
    told: dict[str, dict[str, object]] = {}
    for thread in all_threads():
        frame = frames.get(thread.ident or 0)
        lines = [] if frame is None else traceback.extract_stack(frame, LONGEST_STACK)
        told[str(thread.ident)] = {
            "thread": thread.name,
            "daemon": thread.daemon,
            "stack": [f"{line.filename}:{line.lineno} {line.name}" for line in reversed(lines)],
        }
    return as_json({"threads": told})
