"""The end of a source's process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kestrel.spark.stream.open_reads import exit_on_sigterm
from tests.child import Child, join

_WAITS = """
import select, signal, sys
from kestrel.spark.stream.open_reads import exit_on_sigterm, ignore_sigterm
{before}
exit_on_sigterm()
try:
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.1)[0]:  # a signal directly before a read would wait for its end
        pass
    print("goes on", flush=True)
finally:
    {finally_}
    print("stopped", flush=True)
"""


@contextmanager
def waiting(before: str = "", finally_: str = "") -> Iterator[Child[str]]:
    """A process that waits for a line of input."""
    command = [sys.executable, "-c", _WAITS.format(before=before, finally_=finally_)]
    with Child[str](command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.read_line() == "ready\n"
            yield process
        finally:
            process.kill()


_ANOTHER = "signal.raise_signal(signal.SIGTERM)"


@pytest.mark.parametrize("finally_", ["", _ANOTHER])
def test_second_sigterm_does_not_interrupt_orderly_stop(finally_: str) -> None:
    with waiting(finally_=finally_) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
        assert process.stdout is not None
        assert process.stdout.read() == "stopped\n"


def test_sigterm_does_not_cut_an_end_that_has_begun() -> None:
    with waiting(finally_=f"ignore_sigterm(); {_ANOTHER}") as process:
        assert process.communicate("\n")[0] == "goes on\nstopped\n"
        assert process.returncode == 0


def test_handler_of_the_program_is_kept() -> None:
    with waiting("signal.signal(signal.SIGTERM, lambda *_: None)") as process:
        process.send_signal(signal.SIGTERM)
        assert process.communicate("\n")[0] == "goes on\nstopped\n"


def test_no_handler_is_set_in_a_thread() -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            exit_on_sigterm()
        except BaseException as error:
            failures.append(error)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    join(thread)
    assert not failures
    assert signal.getsignal(signal.SIGTERM) is before
