"""Kills the server and its PostgreSQL in turn while clients put and get, and checks that no item is lost or reordered.

    python -m tests.torture.database --seed 1 --items 20000 --kills 20

The clients and the checks are those of kill_restart.py. The server continues while its database is down: it answers
requests later, or refuses them.
"""

from __future__ import annotations

import sys

from kestrel_postgres.testing import PrivateServer

from tests.server.running import Processes
from tests.torture import command_line, kill_restart


def torture(processes: Processes, *, seed: int, item_count: int, kills: int) -> int:
    """Put and take that many items over that many kills. Print a report and return the number of failed checks."""
    with PrivateServer(is_synced=True) as database:
        processes.arguments = ("--storage", f"postgres:{database.conninfo}")
        return kill_restart.torture(processes, seed=seed, item_count=item_count, kills=kills, database=database)


if __name__ == "__main__":
    sys.exit(command_line.run(torture, __doc__, items=20_000, kills=20, storage=None))
