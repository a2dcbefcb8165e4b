"""The command `kestrel-cli top`, which polls the admin port and draws its statistics."""

from __future__ import annotations

import curses
import locale
import os
import select
import signal
import socket
import ssl
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from attrs import evolve

from kestrel.tools.cli.admin_client import AdminClient, AdminFailed, Overview, QueueRates, rows
from kestrel.tools.cli.top_screen import (
    ScreenView,
    apply_key,
    clean,
    header,
    last_offset,
    page_size,
    screen,
    table,
    visible_rows,
)
from kestrel.tools.formatting import show_duration
from kestrel.tools.tool_runner import (
    EX_OK,
    EX_SERVER,
    VERIFICATION_ADVICE,
    Clock,
    Output,
    ToolFailed,
    explain_tls_refusal,
)

_ESCAPE_MS: Final = 25
_REDRAW_S: Final = 1.0
"""Seconds between redraws while the server does not respond, to update the time in the message."""


def top(client: AdminClient, arguments: Namespace, clock: Clock) -> int:
    """Run the dashboard, or print a plain table with --once or without a suitable terminal. Return the exit status."""
    view = ScreenView(sort=arguments.sort, filter=arguments.filter)
    first = _first(client)
    if arguments.once or not _can_draw():
        return _once(client, first, view, arguments.interval, clock)
    with_colour = not arguments.no_colour and not os.environ.get("NO_COLOR")
    dashboard = Dashboard(client, first, view, arguments.interval, clock.seconds)
    with suppress(KeyboardInterrupt):
        locale.setlocale(locale.LC_ALL, "")
        window = curses.initscr()
        try:
            curses.noecho()
            curses.cbreak()
            window.keypad(True)
            if with_colour and curses.has_colors():
                # start_color sends colours to the terminal. curses.wrapper always calls it, so it is not used here.
                curses.start_color()
                curses.use_default_colors()
            else:
                with_colour = False
            dashboard.run(window, with_colour)
        finally:
            window.keypad(False)
            curses.endwin()
    return EX_OK


def _can_draw() -> bool:
    if sys.stdin is None or sys.stdout is None or not sys.stdin.isatty() or not sys.stdout.isatty():
        return False
    if os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        curses.setupterm()
    except curses.error:
        return False
    return curses.tigetstr("cup") is not None


def _first(client: AdminClient) -> Overview:
    try:
        return client.overview()
    except AdminFailed as failed:
        refusal = explain_tls_refusal(failed, "name it with http://") if client.is_https else None
        reason = refusal or f"{clean(str(failed))}; {_way_out(failed)}"
        raise ToolFailed(f"{client.address}: {reason}", EX_SERVER) from None


def _way_out(failed: AdminFailed) -> str:
    match failed.cause:
        case ssl.SSLCertVerificationError():
            return VERIFICATION_ADVICE
        case socket.gaierror():
            return "name another with --admin"
        case _:
            return "is the server running, and is httpPort set in its table [admin]? name another port with --admin"


def _once(client: AdminClient, first: Overview, view: ScreenView, interval_s: float, clock: Clock) -> int:
    """Print one table from two responses, which the rates need. Return the exit status."""
    clock.pause(interval_s)
    now = _first(client)
    found = rows(first, now)
    output = Output()
    output.lines([*header(now, found), *table(visible_rows(found, view), view.sort, None)])
    output.flush()
    return EX_OK


class Dashboard:
    """The interactive dashboard. A thread makes each request to the server."""

    def __init__(
        self, client: AdminClient, first: Overview, view: ScreenView, interval_s: float, seconds: Callable[[], float]
    ) -> None:
        self._client = client
        self._now = first
        self._rows: list[QueueRates] = rows(None, first)
        self._view = view
        self._interval_s = interval_s
        self._seconds = seconds
        self._answers: SimpleQueue[Overview | AdminFailed] = SimpleQueue()
        self._is_asking = False
        # Rates need a second response, so the first interval is short.
        self._next_s = seconds() + min(interval_s, 1.0)
        self._unreachable_since_s: float | None = None
        self._away_at = self._error_text = ""
        self._wake_read, self._wake_write = socket.socketpair()
        self._styles: dict[str, int] = {}

    def run(self, window: curses.window, with_colour: bool) -> None:
        self._set_up(window, with_colour)
        while True:
            self._draw(window)
            ready, _, _ = select.select([sys.stdin, self._wake_read], [], [], self._pause_s())
            # Bytes other than 0 are signals, and the size may have changed.
            if self._wake_read in ready and self._wake_read.recv(4096).strip(b"\0"):
                curses.resizeterm(*reversed(os.get_terminal_size()))
                window.clear()
            self._take_answers()
            if not self._take_keys(window):
                return
            self._ask_if_due()

    def _set_up(self, window: curses.window, with_colour: bool) -> None:
        window.nodelay(True)
        curses.set_escdelay(_ESCAPE_MS)
        with suppress(curses.error):
            curses.curs_set(0)
        self._styles = {"bold": curses.A_BOLD, "reverse": curses.A_REVERSE, "alarm": curses.A_BOLD}
        if with_colour:
            curses.init_pair(1, curses.COLOR_RED, -1)
            self._styles["alarm"] |= curses.color_pair(1)
        for each in (self._wake_read, self._wake_write):
            each.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def _ask(self) -> None:
        """Request an overview. Runs in a thread."""
        try:
            self._answers.put(self._client.overview())
        except AdminFailed as failed:
            self._answers.put(failed)
        self._wake_write.send(b"\0")

    def _ask_if_due(self) -> None:
        now_s = self._seconds()
        if not self._is_asking and not self._view.is_paused and now_s >= self._next_s:
            self._is_asking = True
            self._next_s = now_s + self._interval_s
            threading.Thread(target=self._ask, daemon=True).start()

    def _pause_s(self) -> float | None:
        redraw_s = _REDRAW_S if self._unreachable_since_s is not None else None
        if self._is_asking or self._view.is_paused:
            return redraw_s
        due_s = max(0.0, self._next_s - self._seconds())
        return due_s if redraw_s is None else min(due_s, redraw_s)

    def _take_answers(self) -> None:
        while not self._answers.empty():
            answer = self._answers.get()
            self._is_asking = False
            if isinstance(answer, AdminFailed):
                if self._unreachable_since_s is None:
                    self._unreachable_since_s, self._away_at = self._seconds(), time.strftime("%H:%M:%S")
                self._error_text = str(answer)
            else:
                self._unreachable_since_s = None
                self._rows, self._now = rows(self._now, answer), answer

    def _take_keys(self, window: curses.window) -> bool:
        while True:
            try:
                key = window.get_wch()
            except curses.error:
                return True
            lines, _ = window.getmaxyx()
            last = last_offset(len(visible_rows(self._rows, self._view)), lines, self._view)
            name = key if isinstance(key, str) else curses.keyname(key).decode().removeprefix("KEY_").lower()
            view = apply_key(name, self._view, page_size(lines, self._view), last)
            if view is None:
                return False
            self._view = view

    def _draw(self, window: curses.window) -> None:
        lines, columns = window.getmaxyx()
        trouble = ""
        if self._unreachable_since_s is not None:
            away = show_duration(int(self._seconds() - self._unreachable_since_s) * 1000)
            trouble = f"no response since {self._away_at} ({away}): {self._error_text}; trying again"
        view = evolve(self._view, trouble=trouble)
        window.erase()
        for number, line in enumerate(screen(self._now, self._rows, view, columns, lines)):
            # Writing to the last cell of the screen always raises.
            with suppress(curses.error):
                window.addstr(number, 0, _encodable(line.text), self._styles.get(line.style, curses.A_NORMAL))
        window.refresh()


def _encodable(text: str) -> str:
    """Return text with all characters escaped that the terminal's encoding does not have."""
    encoding = locale.getpreferredencoding(False)
    return text.encode(encoding, "backslashreplace").decode(encoding)
