"""Celery workers and the server are killed: no task is lost, and only those that were running run again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from celery import Celery

import kestrel.kombu_transport  # noqa: F401  registers kestrel://
from tests.child import Child
from tests.server.running import ROOT, Processes, Server, eventually, own_port
from tests.worker.gate import lines_of, open_gate

PAGE: Final = (ROOT / "docs" / "celery.md").read_text()
APP: Final = PAGE.partition("```python\n")[2].partition("```")[0]

TASKS: Final = '''
import os
import signal

from celery.worker.request import Request

# The file `begun` has a line for each call that began, and `ended` for each that ended.


def note(name, item):
    with open(name, "a") as file:
        file.write(item + "\\n")


class NotedRequest(Request):
    def on_accepted(self, pid, time_accepted):
        super().on_accepted(pid, time_accepted)
        note("accepted", self.id)


@app.task(Request=NotedRequest)
def handle(item):
    note("begun", item)
    if item.endswith("!"):
        with open("gate") as gate:  # waits, if the file is a FIFO, until it is opened for writing
            gate.read()
    note("ended", item)


@app.task(bind=True)
def fail_twice(self, item):
    note("begun", item)
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    note("ended", item)


@app.task
def kill_once(item):
    note("begun", item)
    with open("begun") as file:
        if file.read().count(item) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    note("ended", item)
'''

FAST: Final = [f"{number}" for number in range(20)]
SLOW: Final = ["a!", "b!"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder of the workers."""
    folder = tmp_path / "worker"
    folder.mkdir()
    os.mkfifo(folder / "gate")
    return folder


def test_page_names_the_command_of_the_worker() -> None:
    assert "    celery -A tasks worker\n" in PAGE


@contextmanager
def worker(folder: Path, port: int) -> Iterator[Child[str]]:
    """Run a Celery worker with the app of the page and two processes. All are killed at the end of the block."""
    (folder / "tasks.py").write_text(APP.replace("localhost", f"127.0.0.1:{port}") + TASKS)
    with (folder / "log").open("a") as log:
        process = Child[str](
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "2", "-Q", "work,other"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        with process:
            yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def unfinished(server: Server) -> int:
    """Return the number of items and open reads of all queues."""
    with server.connect() as client:
        stats = client.stats()
    return sum(int(stats[name]) for name in stats if re.fullmatch("queue_(work|other)_(items|open_transactions)", name))


def have_begun(folder: Path, times: int) -> bool:
    """Return whether each slow task has begun this often."""
    counts = Counter(lines_of(folder, "begun"))
    return all(counts[item] == times for item in SLOW)


def send(port: int, item: str, task: str = "handle", queue: str = "work", **options: Any) -> None:
    with Celery("sender", broker=f"kestrel://127.0.0.1:{port}", set_as_current=False) as app:
        app.send_task(f"tasks.{task}", (item,), queue=queue, **options)


def test_kills_lose_no_task(folder: Path, processes: Processes) -> None:
    with own_port() as port:
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        server = processes.serve(endpoint=endpoint)
        for number, item in enumerate(FAST):
            send(port, item, queue="work" if number % 2 else "other")
        send(port, "later", countdown=0.5)
        send(port, "retried", "fail_twice")
        send(port, "killed", "kill_once")
        with worker(folder, port) as process:
            eventually(lambda: len(lines_of(folder, "ended")) == len(FAST) + 3, "the fast tasks have ended")
            for item in SLOW:
                send(port, item)
            eventually(lambda: set(SLOW) <= {*lines_of(folder, "begun")}, "all processes have a slow task")
            eventually(lambda: unfinished(server) == len(SLOW), "the fast tasks are acknowledged")
            send(port, "waiting")
            process.kill()
            process.wait()

        with worker(folder, port) as process:
            eventually(lambda: have_begun(folder, 2), "another worker has the slow tasks again")
            server.kill()
            server = processes.serve(endpoint=endpoint)
            open_gate(folder)
            eventually(lambda: have_begun(folder, 3), "the slow tasks are delivered again")
            eventually(lambda: not unfinished(server), "all tasks are acknowledged")
            process.terminate()
            assert process.wait() == 0, (folder / "log").read_text()

    # A slow task was begun by the worker that was killed, by its successor, whose reads the server lost in its restart,
    # and again after the restart. The successor had also reserved the task that waited. It ran that one twice if it
    # did not notice the restart before. All other tasks had been acknowledged before each kill.
    for name, killed, retried, slow in (("begun", 2, 3, 3), ("ended", 1, 1, 2)):
        counts = Counter(lines_of(folder, name))
        assert counts.pop("waiting") in (1, 2)
        assert counts == dict.fromkeys([*FAST, "later"], 1) | {"killed": killed, "retried": retried} | dict.fromkeys(
            SLOW, slow
        )


def test_stopped_worker_ends_its_running_tasks_and_returns_the_others(folder: Path, processes: Processes) -> None:
    server = processes.serve()
    for item in (*SLOW, *FAST):
        send(server.port, item)
    with worker(folder, server.port) as process:
        # Celery forgets a task in progress if the signal arrives before it has read that the task was accepted.
        eventually(lambda: len(lines_of(folder, "accepted")) == len(SLOW), "all processes have a slow task")
        process.terminate()
        eventually(lambda: "Warm shutdown" in (folder / "log").read_text(), "the signal is handled")
        open_gate(folder)
        assert process.wait() == 0, (folder / "log").read_text()
    ended = lines_of(folder, "ended")
    assert set(SLOW) <= {*ended} and sorted(ended) == sorted(lines_of(folder, "begun"))
    assert unfinished(server) == len(SLOW) + len(FAST) - len(ended)
