"""The service that twistd runs, from its options to a running server or an error message."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TextIO

from attrs import evolve
from twisted.application.service import MultiService
from twisted.logger import ILogObserver, Logger
from twisted.python.components import Componentized

from kestrel.config.model import Config
from kestrel.errors import KestrelError
from kestrel.server.logs import ServerLog
from kestrel.server.options import Options
from kestrel.server.process import ExitStatus, call_as_user, keep_freed_memory, raise_file_limit
from kestrel.server.service import KestrelService
from kestrel.server.startup_errors import EX_CANNOT_CREATE, CannotServe

log = Logger(__name__)


FULL_COLLECTION_AFTER: Final = 50
"""Smaller garbage collections per full one. Each follows 7,000 new objects; garbage takes about 10 MB until a full one.
"""

NO_FULL_COLLECTION: Final = 2**31 - 1


_REPORTED: Final = "the reason was printed"
"""Message to the twistd process that waits for a daemon to start."""


class _StarterStderr:
    """Standard error of the twistd process that waits for a daemon to start.

    It omits twistd's report of a failure if the daemon has already printed the reason.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text that is not twistd's report of a failure whose reason was printed."""
        return len(text) if self._stream is None or _REPORTED in text else self._stream.write(text)


class Daemon(MultiService):
    """The server in its process, with its log, signals and limits, and the exit status of a failed start."""

    def __init__(self, reactor: Any, options: Options) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can reload, SIGHUP would end the process
        raise_file_limit()  # before the storage reads the limit
        keep_freed_memory()
        self._exit_status = ExitStatus()
        self._reactor = reactor
        self._options = options
        # Keep the terminal's stderr: twistd redirects sys.stderr to its log, and a daemon has none.
        self._stderr: int | None = os.dup(2)
        if options.parent is not None and not options.twistd("nodaemon"):
            sys.__stderr__ = _StarterStderr(sys.__stderr__)  # type: ignore[misc, assignment]
        self._log: ServerLog | None = None
        config = options.settings
        try:
            # In a .tac file, twistd's own log has the options --logfile and --syslog.
            if not options.twistd("syslog") and (options.parent is not None or config.logging.file is not None):
                open_log = partial(ServerLog, self._logging(config))
                self._log = call_as_user(options.twistd("uid"), options.twistd("gid"), open_log)
            self._server = KestrelService(
                reactor,
                config,
                endpoints=options.endpoints,
                trusted=options.trusted,
                load_config=options.load_config,
                loaded=_freeze_loaded_objects,
                reloaded=self._reloaded,
                failed=self._failed,
            )
        except OSError as error:
            self._say(
                f"cannot write the log {error.filename} ({error.strerror}): create its folder, or name another file"
            )
            raise SystemExit(EX_CANNOT_CREATE) from error
        except CannotServe as error:
            self._say(str(error))
            raise SystemExit(error.status) from error
        self._server.setServiceParent(self)  # type: ignore[no-untyped-call]

    def _logging(self, config: Config) -> Any:
        """Return the logging settings. twistd's --logfile overrides the configuration; a daemon's default is
        twistd.log.
        """
        file = self._options.twistd("logfile") or config.logging.file
        if file is None and not self._options.twistd("nodaemon"):
            file = "twistd.log"
        return evolve(config.logging, file=None if file == "-" else file)

    def _reloaded(self, config: Config) -> None:
        if self._log is not None:
            self._log.use_levels(config.logging)

    def setServiceParent(self, parent: Any) -> None:
        """Install the log observer before twistd begins to log."""
        if self._log is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._log.observer)
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]

    def privilegedStartService(self) -> None:
        """Bind the ports."""
        self._or_say_why(super().privilegedStartService)

    def startService(self) -> None:
        """Load the queues and serve."""
        _pause_full_collections()
        self._reactor.callWhenRunning(self._handle_signals)
        self._or_say_why(super().startService)
        if self._stderr is not None and not os.path.sameopenfile(2, self._stderr):
            os.close(self._stderr)  # a daemon: twistd reports that it has started
            self._stderr = None

    def _or_say_why(self, start: Callable[[], None]) -> None:
        try:
            start()
        except CannotServe as error:
            self._say(str(error))
            starter = self._options.twistd("statusPipe")
            if starter is not None:
                log.critical("The server cannot serve: {reason}", reason=str(error))
                os.write(starter, f"1 {_REPORTED}".encode())  # twistd's first process waits for this and exits with 1
            with suppress(OSError):  # there is none, or a user without root's rights cannot remove it
                os.unlink(self._options.twistd("pidfile") or "")
            raise SystemExit(error.status) from error

    def _failed(self, error: CannotServe) -> None:
        """Print why the start failed and set the exit status, before the reactor is stopped."""
        self._exit_status.exit_with(error.status)
        self._say(str(error))

    def _say(self, sentence: str) -> None:
        if self._stderr is None:
            return
        with suppress(OSError):  # its reader is gone; the process ends anyway
            os.write(self._stderr, f"kestrel: {sentence}\n".encode("utf-8", "backslashreplace"))

    def _handle_signals(self) -> None:
        """Replace the reactor's signal handlers, which would exit with the signal after an orderly stop."""
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: object) -> None:
        # A signal can arrive between any two instructions; the reactor handles it between two calls.
        self._reactor.callFromThread(self._reload if number == signal.SIGHUP else self._stop)

    def _stop(self) -> None:
        """Stop in an orderly way and exit with 0, on SIGTERM or SIGINT."""
        if self.running:
            self._reactor.stop()

    def _reload(self) -> None:
        """Reopen the log and reload the configuration, on SIGHUP."""
        if self._log is not None:
            try:
                self._log.reopen()
            except OSError as error:
                log.error("Cannot reopen the log; still writing to the old file: {reason}", reason=error.strerror)
        self._server.reload().addErrback(lambda failure: failure.trap(KestrelError))  # already logged


def _pause_full_collections() -> None:
    """Exclude the imported modules from garbage collection, and make no full collections while the queues are loaded.

    Nearly all objects of a load stay. With 10,000 queues, half of the time of the load was spent on examining them
    again and again.
    """
    gc.freeze()
    new, young, _ = gc.get_threshold()
    gc.set_threshold(new, young, NO_FULL_COLLECTION)


def _freeze_loaded_objects() -> None:
    """Exclude the loaded objects from garbage collection, and make full collections again, but rarer.

    Most loaded objects stay. Each full collection would examine them, which takes 20 ms, and more than 100 ms with
    10,000 queues. Full collections also examine the objects of hundreds of busy connections, so they are made five
    times rarer.
    """
    gc.freeze()
    new, young, _ = gc.get_threshold()
    gc.set_threshold(new, young, FULL_COLLECTION_AFTER)


def makeService(options: Options) -> Daemon:
    """Return the service that twistd runs (IServiceMaker)."""
    from twisted.internet import reactor

    return Daemon(reactor, options)
