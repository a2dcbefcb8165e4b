"""twistd's way in: from its command line to a running server, or to one sentence why not."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from attrs import evolve
from twisted.application.service import MultiService
from twisted.logger import ILogObserver, Logger
from twisted.python.components import Componentized

from kestrel.config.model import Config
from kestrel.errors import KestrelError
from kestrel.server.exit_status import ExitStatus
from kestrel.server.logs import ServerLog
from kestrel.server.options import Options
from kestrel.server.privileges import call_as_user
from kestrel.server.reactor import raise_file_limit
from kestrel.server.service import KestrelService
from kestrel.server.startup_errors import EX_CANNOT_CREATE, CannotServe

log = Logger(__name__)


FULL_COLLECTION_AFTER: Final = 50
"""So many smaller collections, each of which comes after 7000 more objects than before: what the dead take meanwhile is
some ten MB."""


class Daemon(MultiService):
    """The server inside its process: log, signals, limits, and how a failed start ends."""

    def __init__(self, reactor: Any, options: Options) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nothing is to be read again yet, and it would end the process
        raise_file_limit()  # before the storage counts what it may open
        self._exit_status = ExitStatus()
        self._reactor = reactor
        self._options = options
        # twistd logs what goes to sys.stderr, and a daemon has none: keep the one that the owner sees.
        self._stderr: int | None = os.dup(2)
        self._log: ServerLog | None = None
        config = options.settings
        try:
            if not options.twistd("syslog"):
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
                f"the log {error.filename} cannot be written ({error.strerror}): make its folder, or name another file"
            )
            raise SystemExit(EX_CANNOT_CREATE) from error
        except CannotServe as error:
            self._say(str(error))
            raise SystemExit(error.status) from error
        self._server.setServiceParent(self)  # type: ignore[no-untyped-call]

    def _logging(self, config: Config) -> Any:
        """twistd's --logfile wins over the configuration; a daemon without either logs to twistd.log, as usual."""
        file = self._options.twistd("logfile") or config.logging.file
        if file is None and self._options.parent is not None and not self._options.twistd("nodaemon"):
            file = "twistd.log"
        return evolve(config.logging, file=None if file == "-" else file)

    def _reloaded(self, config: Config) -> None:
        if self._log is not None:
            self._log.use_levels(config.logging)

    def setServiceParent(self, parent: Any) -> None:
        """twistd begins to log after this: give it our observer."""
        if self._log is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._log.observer)
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]

    def privilegedStartService(self) -> None:
        """Bind the ports."""
        self._or_say_why(super().privilegedStartService)

    def startService(self) -> None:
        """Load and serve."""
        self._reactor.callWhenRunning(self._handle_signals)
        self._or_say_why(super().startService)
        if self._stderr is not None and not os.path.sameopenfile(2, self._stderr):
            os.close(self._stderr)  # a daemon, whose owner is told that it has started
            self._stderr = None

    def _or_say_why(self, start: Callable[[], None]) -> None:
        try:
            start()
        except CannotServe as error:
            self._say(str(error))
            if self._options.twistd("statusPipe") is not None:
                raise  # twistd's parent process waits for this, and exits with 1
            pidfile = self._options.twistd("pidfile")
            if pidfile and os.path.exists(pidfile):
                os.unlink(pidfile)
            raise SystemExit(error.status) from error

    def _failed(self, error: CannotServe) -> None:
        """The start has failed, and the reactor is stopped next."""
        self._exit_status.exit_with(error.status)
        self._say(str(error))

    def _say(self, sentence: str) -> None:
        if self._stderr is None:
            return
        with suppress(OSError):  # nobody reads it any more, and the process ends all the same
            os.write(self._stderr, f"kestrel: {sentence}\n".encode("utf-8", "backslashreplace"))

    def _handle_signals(self) -> None:
        """After the reactor's own handlers, which would end the process by the signal that stopped it in order."""
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: object) -> None:
        # A signal comes between any two instructions; the reactor takes it up between two calls.
        self._reactor.callFromThread(self._reload if number == signal.SIGHUP else self._stop)

    def _stop(self) -> None:
        """SIGTERM, SIGINT: stop in order, and exit with 0."""
        if self.running:
            self._reactor.stop()

    def _reload(self) -> None:
        """SIGHUP: open the log anew and take the settings from the file again."""
        if self._log is not None:
            try:
                self._log.reopen()
            except OSError as error:
                log.error("The log cannot be opened anew, and goes on as it is: {reason}", reason=error.strerror)
        self._server.reload().addErrback(lambda failure: failure.trap(KestrelError))  # the log has it


def _freeze_loaded_objects() -> None:
    """What is there now mostly stays. The garbage collector would look through it again and again, which takes 20 ms
    each time, and more than 100 ms where there are 10,000 queues. Through all that comes later, of hundreds of busy
    connections for example, it looks five times more seldom than it would."""
    gc.collect()
    gc.freeze()
    new, young, _ = gc.get_threshold()
    gc.set_threshold(new, young, FULL_COLLECTION_AFTER)


def makeService(options: Options) -> Daemon:
    """The service that twistd runs (IServiceMaker)."""
    from twisted.internet import reactor

    return Daemon(reactor, options)
