"""The server's log: its destination, format and levels. The data of items is never logged."""

from __future__ import annotations

import fcntl
import os
import re
import sys
from typing import Any, Final

from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogObserver,
    LogEvent,
    LogLevel,
    LogLevelFilterPredicate,
    PredicateResult,
    eventAsJSON,
    eventAsText,
)
from twisted.python.failure import Failure
from twisted.python.logfile import LogFile

from kestrel.config.model import LoggingSettings
from kestrel.escaping import escape_controls

_RECORD_SEPARATOR = "\x1e"
"""Prefix of each record of a JSON text sequence (RFC 7464)."""

_PORT_LINE: Final = re.compile(r".+ starting on .+|\(.*Port .+ Closed\)")
"""Twisted's lines about a port. The server logs each port itself, with its protocol and address."""


class _SharedLogFile(LogFile):
    """A log file opened in append mode, so that other processes may also write to it or truncate it."""

    def _openFile(self) -> None:
        super()._openFile()  # type: ignore[no-untyped-call]
        descriptor = self._file.fileno()
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)


def text_line(event: LogEvent) -> str:
    """Return an event as one line, followed by its traceback with a tab before each line.

    Control characters are escaped here, for all events, since any value may come from a client.
    """
    line = eventAsText(event, includeTraceback=False)
    failure = event.get("log_failure")
    traceback = failure.getTraceback().split("\n") if isinstance(failure, Failure) else []
    if not line and not traceback:
        return ""
    return "\n\t".join(map(escape_controls, [line, *traceback])) + "\n"


def json_line(event: LogEvent) -> str:
    """Return an event as a record of a JSON text sequence. JSON itself escapes all control characters except DEL."""
    return _RECORD_SEPARATOR + eventAsJSON(event).replace("\x7f", "\\u007f") + "\n"


def _omit_port_lines(event: LogEvent) -> Any:
    is_legacy = event.get("log_namespace") == "log_legacy"
    is_port_line = is_legacy and _PORT_LINE.fullmatch(eventAsText(event, False, False, False))
    return PredicateResult.no if is_port_line else PredicateResult.maybe


class ServerLog:
    """The log of one server: an observer for Twisted's logger, whose file can be reopened.

    Raises OSError if the file cannot be opened.
    """

    def __init__(self, settings: LoggingSettings) -> None:
        self._file: LogFile | None = None
        stream: Any = sys.stdout
        if settings.file is not None:
            self._file = stream = _SharedLogFile.fromFullPath(  # type: ignore[no-untyped-call]
                settings.file,
                rotateLength=settings.rotate_size_bytes,
                maxRotatedFiles=settings.rotate_count,
                defaultMode=0o600,
            )
        to_line = json_line if settings.format == "json" else text_line
        self._predicate = LogLevelFilterPredicate()
        predicates: list[Any] = [_omit_port_lines, self._predicate]
        self.observer: ILogObserver = FilteringLogObserver(FileLogObserver(stream, to_line), predicates)
        self.use_levels(settings)

    def use_levels(self, settings: LoggingSettings) -> None:
        """Use the log levels of `settings` from now on. At level info, Twisted's own messages begin at warn."""
        self._predicate.clearLogLevels()
        twisted = {"twisted": "warn"} if settings.level == "info" else {}
        for namespace, level in {"": settings.level, **twisted, **settings.levels}.items():
            self._predicate.setLogLevelForNamespace(namespace, LogLevel.levelWithName(level))

    def reopen(self) -> None:
        """Reopen the file after it was renamed. If that fails, raise OSError and keep the old file."""
        if self._file is not None:
            os.close(os.open(self._file.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._file.reopen()
