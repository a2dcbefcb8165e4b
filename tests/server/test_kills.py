"""Short forms of the tortures that kill a server, over each storage; `make help` lists the long ones."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel.server.startup_errors import EX_TRY_AGAIN
from tests.server.running import Processes
from tests.server.storages import SERVED, new_storage
from tests.torture import database, kill_restart, leases, moves, torture


@pytest.fixture(params=SERVED)
def storage(request: pytest.FixtureRequest) -> Iterator[str]:
    """What `--storage` is given."""
    with new_storage(request.param) as storage:
        yield storage


@pytest.fixture
def over_it(processes: Processes, storage: str) -> Processes:
    """Servers over that storage."""
    processes.arguments = ("--storage", storage)
    return processes


def test_a_short_torture_with_kills_loses_nothing(over_it: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    failed = kill_restart.torture(over_it, seed=1, item_count=4000, kills=4)
    ledger = capsys.readouterr().out
    assert failed == 0, ledger
    assert re.search(r"^\d+ passed, 0 failed$", ledger.splitlines()[-1])


def test_items_that_move_are_not_lost_by_kills(over_it: Processes) -> None:
    assert moves.torture(over_it, seed=2, item_count=1500, kills=2) == 0


def test_a_short_torture_of_reads_held_by_number_loses_nothing(over_it: Processes) -> None:
    assert leases.torture(over_it, seed=3, item_count=4000, kills=3) == 0


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("storage", torture.STORAGES)
def test_whatever_fails_under_clients_of_all_protocols_every_item_is_accounted_for(
    tmp_path: Path, storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = torture.torture(tmp_path, seed=1, seconds=7, storage=storage)
    ledger = capsys.readouterr().out
    assert failed == 0, ledger
    assert re.search(r"^\d+ passed, 0 failed$", ledger.splitlines()[-1])


@pytest.mark.needs("postgresql")
@pytest.mark.database
def test_a_database_that_is_killed_under_its_server_and_a_server_over_it_lose_nothing(processes: Processes) -> None:
    assert database.torture(processes, seed=4, item_count=2000, kills=6) == 0


@pytest.mark.needs("postgresql")
@pytest.mark.database
def test_a_server_whose_database_another_one_has_taken_ends_and_says_so(processes: Processes, tmp_path: Path) -> None:
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
