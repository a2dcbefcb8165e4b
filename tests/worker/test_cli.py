"""kestrel-worker: its command line, its signals, and that no item is lost when it or the server is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestrel.client.blocking import BlockingClient
from kestrel.worker import cli
from tests.child import PATIENCE_S, Child
from tests.server.running import ROOT, Processes, Server, eventually, own_port
from tests.worker.gate import lines_of, open_gate

TASKS: Final = '''
"""Functions for a worker. The file `begun` has a line for each call that began, and `ended` for each that ended."""

import asyncio


def note(name, item):
    with open(name, "ab") as file:
        file.write(item + b"\\n")


def handle(item):
    note("begun", item)
    if item.endswith(b"!"):
        with open("gate") as gate:  # waits, if the file is a FIFO, until someone writes to it
            gate.read()
    note("ended", item)


async def handle_async(item):
    note("begun", item)
    await asyncio.sleep(0)
    note("ended", item)


class Handlers:
    @staticmethod
    def fail(item):
        raise ValueError(item)


handlers = {}
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder of the workers."""
    folder = tmp_path / "worker"
    folder.mkdir()
    (folder / "tasks.py").write_text(TASKS)
    os.mkfifo(folder / "gate")
    return folder


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Servers in another folder."""
    (tmp_path / "server").mkdir()
    with Processes(tmp_path / "server") as processes:
        yield processes


class Working(Child[str]):
    """A process of kestrel-worker. `err` has what it wrote to standard error."""

    def __init__(self, folder: Path, server: Server, *arguments: str) -> None:
        self.err = folder / "err"
        with self.err.open("w") as err:
            super().__init__(
                [sys.executable, "-m", "kestrel.worker.cli", *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "KESTREL_SERVERS": f"127.0.0.1:{server.port}"},
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        self.first_line = self.read_line()

    def stop(self) -> None:
        """Send the first signal, and wait until it is handled."""
        self.send_signal(signal.SIGTERM)
        eventually(lambda: "waiting for the running calls" in self.err.read_text(), "the signal is handled")


def left_in(server: Server, queue: bytes = b"work") -> list[bytes]:
    with server.connect() as client:
        return list(iter(lambda: client.get(queue), None))


def is_finished(server: Server) -> bool:
    """Whether the queue has neither items nor open reads."""
    with server.connect() as client:
        stats = client.stats()
    return stats["queue_work_items"] == stats["queue_work_open_transactions"] == "0"


def test_kills_of_worker_and_server_lose_no_item(folder: Path, processes: Processes) -> None:
    plain = [f"{number}" for number in range(150)]
    slow = [f"{number}!" for number in range(4)]
    items = [*plain[:100], *slow, *plain[100:]]
    with own_port() as port:
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        server = processes.serve(endpoint=endpoint)
        with server.connect() as client:
            client.put(b"work", *(item.encode() for item in items))

        with Working(folder, server, "tasks:handle", "--queue", "work", "--concurrency", "4") as worker:
            eventually(lambda: len(lines_of(folder, "begun")) == 104, "all slots are busy with the slow items")
            worker.kill()
        with Working(folder, server, "tasks:handle", "--queue", "work", "--concurrency", "4") as worker:
            eventually(lambda: len(lines_of(folder, "begun")) == 108, "another worker has the items again")
            server.kill()
            server = processes.serve(endpoint=endpoint)
            open_gate(folder)
            eventually(lambda: len(lines_of(folder, "ended")) == 158, "all items are handled")
            eventually(lambda: is_finished(server), "all items are confirmed")
            worker.stop()
            assert worker.wait() == 0
            assert worker.stdout is not None
            assert worker.stdout.read() == (
                "kestrel-worker: stopped; 54 done, 0 moved to the error queue, 0 returned, 4 not confirmed,"
                " 0 failed calls\n"
            )
        assert left_in(server) == []
    # The slow items were begun by the worker that was killed, by its successor, which the server could not confirm,
    # and again after the restart. All other calls had ended and were confirmed before each kill.
    assert Counter(lines_of(folder, "begun")) == Counter({**dict.fromkeys(plain, 1), **dict.fromkeys(slow, 3)})
    assert Counter(lines_of(folder, "ended")) == Counter({**dict.fromkeys(plain, 1), **dict.fromkeys(slow, 2)})
    assert len(re.findall("was not confirmed", (folder / "err").read_text())) == 4


def test_a_signal_lets_running_calls_end(folder: Path, processes: Processes) -> None:
    server = processes.serve()
    with server.connect() as client:
        client.put(b"work", b"a!", b"b")
    with Working(folder, server, "tasks:handle", "--queue", "work") as worker:
        assert worker.first_line == "kestrel-worker: calls tasks:handle for items of work, 1 at a time\n"
        eventually(lambda: lines_of(folder, "begun") == ["a!"], "the call has begun")
        worker.stop()
        open_gate(folder)
        assert worker.wait() == 0
        assert worker.read_line().startswith("kestrel-worker: stopped; 1 done, ")
    assert left_in(server) == [b"b"]


def test_a_second_signal_ends_at_once_and_the_item_returns(folder: Path, processes: Processes) -> None:
    server = processes.serve()
    with server.connect() as client:
        client.put(b"work", b"a!")
    with Working(folder, server, "tasks:handle", "--queue", "work") as worker:
        eventually(lambda: lines_of(folder, "begun") == ["a!"], "the call has begun")
        worker.stop()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == -signal.SIGTERM
    with BlockingClient(f"127.0.0.1:{server.port}") as client:
        assert client.get("work", timeout=PATIENCE_S) == b"a!"


def test_coroutines_errors_and_a_quiescent_server(folder: Path, processes: Processes) -> None:
    server = processes.serve()
    arguments = ["--queue", "work", "--queue", "more", "--concurrency", "2"]
    with server.connect() as client:
        client.put(b"more", b"b")
        client.put(b"work", b"a")
    with Working(folder, server, "tasks:handle_async", *arguments) as worker:
        assert "for items of work, more, 2 at a time" in worker.first_line
        eventually(lambda: sorted(lines_of(folder, "ended")) == ["a", "b"], "the items are handled")
        with BlockingClient(f"127.0.0.1:{server.port}") as client:
            client.set_status("Quiescent")
            eventually(lambda: "cannot take items" in worker.err.read_text(), "the server refuses")
            client.set_status("Up")
            client.put("work", b"c")
        eventually(lambda: "takes items again" in worker.err.read_text(), "the worker goes on")
        eventually(lambda: len(lines_of(folder, "ended")) == 3, "the item is handled")
        worker.stop()
        assert worker.wait() == 0
        assert worker.err.read_text().count("cannot take items") == 1

    with server.connect() as client:
        client.put(b"work", b"secret")
    failing = ["tasks:Handlers.fail", "--queue", "work", "--retries", "1", "--retry-pause", "1ms"]
    with Working(folder, server, *failing, "--error-queue", "failed") as worker:
        with BlockingClient(f"127.0.0.1:{server.port}") as client:
            assert client.get("failed", timeout=PATIENCE_S) == b"secret"
        worker.stop()
        assert worker.wait() == 0
        errors = worker.err.read_text()
        assert "ERROR a call for an item of work failed; no retries left" in errors
        assert "ValueError" in errors and "secret" not in errors


def status_of(arguments: list[str]) -> int:
    """Run the command in this process, and return its exit status."""
    try:
        return cli.main(arguments)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing:f"], "there is no module nothing; it must be in the current folder, installed, or in PYTHONPATH"),
        (
            ["tasks.sub:f"],
            "there is no module tasks.sub; it must be in the current folder, installed, or in PYTHONPATH",
        ),
        (["tasks:nothing"], "the module tasks has no nothing"),
        (["tasks:Handlers.nothing"], "the module tasks has no Handlers.nothing"),
        (["tasks:handlers"], "tasks:handlers is not a function, but of type dict"),
        (["tasks"], "'tasks' is not MODULE:FUNCTION, such as tasks:resize"),
        (["tasks:"], "'tasks:' is not MODULE:FUNCTION, such as tasks:resize"),
        (["tasks:handle", "--ca", "x"], "--ca, --cert, --key and --server-name need --tls"),
        (["tasks:handle", "--server", "mq:x"], "'mq:x' is no address"),
        (["tasks:handle", "--error-queue", "work"], "the error queue must not be one of the worker's queues"),
        (["tasks:handle", "--concurrency", "0"], "'0' is not a number from 1 to 1,000"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert status_of([*arguments, "--queue", "work"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and sentence in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("kestrel-worker: ")


def test_a_module_that_cannot_be_imported_shows_its_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module, line in (("broken_tasks", "1 / 0"), ("needing_tasks", "import nothing_here")):
        (folder / f"{module}.py").write_text(line)
        assert status_of([f"{module}:f", "--queue", "work"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("Traceback") and line in err
        assert err.endswith(f"kestrel-worker: the module {module} cannot be imported; the traceback is above\n")


def test_the_queue_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["tasks:handle"]) == 2
    assert "the following arguments are required: --queue" in capsys.readouterr().err
