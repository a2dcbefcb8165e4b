"""A storage that fails after the server has started: the process ends with a sentence and an exit status."""

import os
import signal
import subprocess
import sys

import pytest

from kestrel.server.startup_errors import EX_CANNOT_CREATE, EX_TRY_AGAIN
from tests.child import Child
from tests.server.running import ANY_PORT, PATIENCE_S, ROOT, Processes, eventually
from tests.storage.distributions import ACME, install

LATE = (
    ACME
    + '''
from pathlib import Path
from kestrel.errors import OwnershipLost, StorageError, StorageInUse
from twisted.internet.defer import Deferred, fail

ERRORS = {
    "in-use": StorageInUse("another server owns the database"),
    "away": StorageError("the database does not answer; start it"),
    "faulty": ZeroDivisionError("division by zero"),
    "lost": OwnershipLost("another server has taken the queues over"),
}


class LateStorage(MemoryStorage):
    """Fails as its argument says: before it waits, at once, in the next turn, when it serves, or when it is closed."""

    def __init__(self, when, error, clock):
        super().__init__()
        self.when, self.error, self.clock = when, error, clock
        self.loading, self.ended = Deferred(), Deferred()

    def start(self, settings_for):
        if self.when == "serving":
            self.clock.callLater(0.1, self.ended.callback, self.error)
            return super().start(settings_for)
        if self.when == "early":
            raise self.error
        if self.when == "at-once":
            return fail(self.error)
        if self.when == "later":
            self.clock.callLater(0, self.loading.errback, self.error)
        self.clock.callLater(0, Path("waiting").touch)
        return self.loading

    def close(self, compacts=False):
        Path("closed").touch()
        if self.when == "at-close":
            self.loading.errback(self.error)
        return super().close(compacts)


class LateFactory(AcmeFactory):
    name = "late"

    def storage(self, argument, options, clock, in_thread, memory):
        when, _, error = argument.partition(",")
        return LateStorage(when, ERRORS[error], clock)
'''
)


@pytest.fixture
def late(processes: Processes) -> Processes:
    """Return servers that find the storage `late`."""
    install(processes.folder, "late = late:LateFactory")
    processes.write("late.py", LATE)
    return processes


@pytest.mark.parametrize("when", ["later", "at-once"])
@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        ("in-use", EX_TRY_AGAIN, "another server owns the database"),
        ("away", EX_CANNOT_CREATE, "the database does not answer; start it"),
        ("faulty", EX_CANNOT_CREATE, "ZeroDivisionError: division by zero"),
    ],
)
def test_late_failure_ends_the_process_like_an_early_one(
    late: Processes, when: str, error: str, status: int, sentence: str
) -> None:
    ended = late.run(*late.twistd("--storage", f"late:{when},{error}", "--memcache", ANY_PORT, pidfile="late.pid"))
    assert (ended.returncode, ended.stderr) == (status, f"kestrel: {sentence}\n")
    assert f"The server cannot serve: {sentence}\n" in ended.stdout
    assert "Traceback" not in ended.stdout
    assert (late.folder / "closed").exists()
    assert not (late.folder / "late.pid").exists()


def test_daemon_logs_a_late_failure_and_ends(late: Processes) -> None:
    arguments = ("--storage", "late:later,in-use", "--memcache", ANY_PORT)
    started = late.run(*late.twistd(*arguments, daemon=True, pidfile="late.pid", logfile="late.log"))
    assert (started.returncode, started.stderr) == (0, "")
    eventually(lambda: not late.running(), "the daemon ends")
    assert "The server cannot serve: another server owns the database\n" in (late.folder / "late.log").read_text()
    assert not (late.folder / "late.pid").exists()


def test_stop_before_the_storage_has_loaded_is_no_failed_start(late: Processes) -> None:
    server = late.start("", "--storage", "late:at-close,away")
    eventually((late.folder / "waiting").exists, "the reactor runs, and the storage waits")
    server.signal(signal.SIGTERM)
    assert (server.exit_status(), server.stderr()) == (0, "")
    assert (late.folder / "closed").exists()


def test_unknown_storage_exception_ends_process_with_one_sentence(late: Processes) -> None:
    ended = late.run(*late.twistd("--storage", "late:early,faulty", "--memcache", ANY_PORT, pidfile="late.pid"))
    assert (ended.returncode, ended.stderr) == (EX_CANNOT_CREATE, "kestrel: ZeroDivisionError: division by zero\n")
    assert "Traceback" not in ended.stdout
    assert not (late.folder / "late.pid").exists()


def test_failed_start_ends_the_process_without_a_standard_error(late: Processes) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = Child[bytes](
        late.twistd("--storage", "late:later,in-use", "--memcache", ANY_PORT, logfile="late.log"),
        cwd=late.folder,
        env=late.environment(),
        stderr=write_end,
    )
    os.close(write_end)
    assert process.wait() == EX_TRY_AGAIN


ENDS_WITH_75 = (
    "import sys\n"
    "from kestrel.server.process import ExitStatus\n"
    "status = ExitStatus()\n"
    "status.exit_with(75)\n"
    "sys.stderr and sys.stderr.write('last words\\n')\n"
)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_process_without_an_output_has_an_exit_status(closed: str) -> None:
    program = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, ENDS_WITH_75]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (75, "" if "2" in closed else "last words\n")


def test_storage_that_fails_while_it_serves_ends_the_process(late: Processes) -> None:
    ended = late.run(*late.twistd("--storage", "late:serving,lost", "--memcache", ANY_PORT, pidfile="late.pid"))
    sentence = "another server has taken the queues over"
    assert (ended.returncode, ended.stderr) == (EX_TRY_AGAIN, f"kestrel: {sentence}\n")
    assert "serves 0 queues" in ended.stdout
    assert f"The server cannot serve: {sentence}\n" in ended.stdout
    assert (late.folder / "closed").exists()
    assert not (late.folder / "late.pid").exists()
