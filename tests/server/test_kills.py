"""Short forms of the tortures that kill a server, over each storage; `make help` lists the long ones."""

import re
from collections.abc import Iterator

import pytest

from tests.server.running import Processes
from tests.server.storages import SERVED, new_storage
from tests.torture import database, kill_restart, leases, moves


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


@pytest.mark.needs("postgresql")
def test_a_database_that_is_killed_under_its_server_and_a_server_over_it_lose_nothing(processes: Processes) -> None:
    assert database.torture(processes, seed=4, item_count=2000, kills=6) == 0
