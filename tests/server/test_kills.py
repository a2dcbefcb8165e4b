"""Short forms of the torture programs that kill a server, with each storage. `make help` lists the long forms."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel.server.startup_errors import EX_TRY_AGAIN
from tests.server.running import Processes
from tests.server.storages import SERVED, new_storage
from tests.torture import database, kill_restart, moves, torture


@pytest.fixture(params=SERVED)
def storage(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the value of `--storage` for an empty storage."""
    with new_storage(request.param) as storage:
        yield storage


@pytest.fixture
def processes_with_storage(processes: Processes, storage: str) -> Processes:
    """Return processes whose servers use the storage."""
    processes.arguments = ("--storage", storage)
    return processes


def test_kills_under_load_lose_no_item(processes_with_storage: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    failed = kill_restart.torture(processes_with_storage, seed=1, item_count=4000, kills=4)
    output = capsys.readouterr().out
    assert failed == 0, output
    assert re.search(r"^\d+ passed, 0 failed$", output.splitlines()[-1])


def test_kills_lose_no_moving_item(processes_with_storage: Processes) -> None:
    assert moves.torture(processes_with_storage, seed=2, item_count=1500, kills=2) == 0


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("storage", torture.STORAGES)
def test_faults_lose_no_item_of_any_protocol(tmp_path: Path, storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    failed = torture.torture(tmp_path, seed=1, seconds=7, storage=storage)
    output = capsys.readouterr().out
    assert failed == 0, output
    assert re.search(r"^\d+ passed, 0 failed$", output.splitlines()[-1])


@pytest.mark.needs("postgresql")
@pytest.mark.database
def test_kills_of_server_and_database_lose_no_item(processes: Processes) -> None:
    assert database.torture(processes, seed=4, item_count=2000, kills=6) == 0


@pytest.mark.needs("postgresql")
@pytest.mark.database
def test_server_stops_when_another_takes_its_database(processes: Processes, tmp_path: Path) -> None:
    import psycopg

    folder = tmp_path / "other"
    folder.mkdir()
    with new_storage("postgres") as storage, Processes(folder) as others:
        server = processes.serve("", "--storage", storage)
        with server.connect() as client:
            client.put(b"work", b"hello")
            server.signal(signal.SIGSTOP)
            with psycopg.connect(storage.removeprefix("postgres:"), autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kestrel'"
                )
            other = others.serve("", "--storage", storage)
            server.signal(signal.SIGCONT)
            client.send(b"set work 0 0 1\r\nx\r\n")
            sentence = b"another server has taken the queues over; to take them back, restart this server"
            assert client.line() == b"SERVER_ERROR %b\r\n" % sentence
        assert server.exit_status() == EX_TRY_AGAIN
        assert server.stderr() == f"kestrel: {sentence.decode()}\n"
        with other.connect() as client:
            assert client.get(b"work") == b"hello"
            assert client.get(b"work") is None
