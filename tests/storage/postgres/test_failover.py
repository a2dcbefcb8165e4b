"""Tests of failovers: acknowledged batches survive, and the batch in flight is applied once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock

from kestrel.errors import DatabaseAway, OwnershipLost
from kestrel.storage.database import QueueChanges, StoredQueue
from kestrel.storage.interfaces import InThread
from kestrel.storage.postgres.database import PostgresDatabase
from kestrel.storage.postgres.description import conninfo_of, database_of
from kestrel.testing.postgres import PrivateServer, kill_server
from tests.server.running import PATIENCE_S
from tests.server.storages import ON_POSTGRES
from tests.storage.postgres.batches import RealThreads, Schemas, applied, batch, changes, fired, first, items, read

pytestmark = ON_POSTGRES


@pytest.fixture
def standby(own_server: PrivateServer) -> Iterator[PrivateServer]:
    """A standby of `own_server`."""
    with PrivateServer(standby_of=own_server) as standby:
        yield standby


def catch_up(primary: PrivateServer) -> None:
    """Wait until the standby has replayed all commits."""
    has_all = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
    with psycopg.connect(primary.conninfo, autocommit=True) as connection:
        while connection.execute(has_all).fetchone() != (1,):
            pass


def promote(standby: PrivateServer) -> None:
    """Make a standby the primary."""
    with psycopg.connect(standby.conninfo, autocommit=True) as connection:
        connection.execute("SELECT pg_promote()")


def database(*servers: PrivateServer, in_thread: InThread = maybeDeferred) -> PostgresDatabase:
    """Return an unused database that connects to the primary among these servers."""
    hosts = ",".join(str(server.folder) for server in servers)
    return database_of(f"host={hosts} user=postgres dbname=postgres", {}, Clock(), in_thread)


def step(number: int) -> QueueChanges:
    """Return the changes of batch `number`, which puts one item."""
    if number == 1:
        return first(b"work", *items(1))
    return changes(StoredQueue(b"work", number, number, 0, number), items(number))


def test_failover_applies_the_batch_in_flight_once(own_server: PrivateServer, standby: PrivateServer) -> None:
    owner = database(own_server, standby)
    assert fired(owner.list_queues()) == []
    for number in range(1, 6):
        fired(owner.apply(batch(number, step(number))))
    catch_up(own_server)
    own_server.kill()
    for _ in range(2):
        with pytest.raises(DatabaseAway):
            fired(owner.apply(batch(6, step(6))))
    promote(standby)
    for _ in range(2):
        applied(owner, batch(6, step(6)))
    assert read(owner) == items(*range(1, 7))
    fired(owner.close())


def test_standby_counts_as_away(own_server: PrivateServer, standby: PrivateServer) -> None:
    alone = database(standby)
    with pytest.raises(DatabaseAway, match=r"the database cannot be used: .* session is read-only"):
        fired(alone.list_queues())
    fired(alone.close())


def test_connections_reach_each_host_that_accepts_writes(own_server: PrivateServer, standby: PrivateServer) -> None:
    promote(standby)
    hosts = f"host={own_server.folder},{standby.folder} user=postgres dbname=postgres"
    reached = set()
    for _ in range(30):
        with psycopg.connect(conninfo_of(hosts, {})) as connection:
            reached.add(connection.info.host)
    assert reached == {str(own_server.folder), str(standby.folder)}


def test_lagging_standby_is_not_written_to(own_server: PrivateServer, standby: PrivateServer) -> None:
    owner = database(own_server, standby)
    assert fired(owner.list_queues()) == []
    fired(owner.apply(batch(1, step(1))))
    catch_up(own_server)
    standby.kill()
    fired(owner.apply(batch(2, step(2))))
    own_server.kill()
    standby.start()
    promote(standby)
    for _ in range(2):
        with pytest.raises(OwnershipLost, match="lost changes that it had acknowledged"):
            applied(owner, batch(3, step(3)))
    fired(owner.close())
    again = database(own_server, standby)
    assert [queue.items for queue in fired(again.list_queues())] == [1]
    assert read(again) == items(1)
    fired(again.close())


def wait_for_standby(server: PrivateServer, name: str) -> None:
    """Make each commit wait for a standby of this name. Empty: commits do not wait."""
    there = Schemas(server.conninfo)
    there.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    there.execute("SELECT pg_reload_conf()")
    while there.execute("SHOW synchronous_standby_names") != [(name,)]:
        pass
    # The checkpointer informs all processes of the setting before it runs a checkpoint.
    there.execute("CHECKPOINT")


def test_cancelled_wait_for_the_standby_does_not_make_a_batch_safe(own_server: PrivateServer) -> None:
    threads, there = RealThreads(), Schemas(own_server.conninfo)
    owner = database(own_server, in_thread=threads)
    listing = owner.list_queues()
    threads.finish()
    assert fired(listing) == []
    wait_for_standby(own_server, "none")
    for _ in range(2):
        applying = owner.apply(batch(1, step(1)))
        # Operators cancel a statement that hangs. The transaction is then committed, but only on this machine.
        while not there.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
            pass
        threads.finish()
        with pytest.raises(DatabaseAway, match="is not on its synchronous standby"):
            fired(applying)
    wait_for_standby(own_server, "")
    applying = owner.apply(batch(1, step(1)))
    reading = owner.read_after(b"work", 0, 10, 10)
    threads.finish()
    assert (fired(applying), fired(reading)) == (None, items(1))
    closing = owner.close()
    threads.finish()
    fired(closing)


# Tests of the private servers.


def system(server: PrivateServer) -> object:
    """Return the system identifier, which only a server and its copies share."""
    return Schemas(server.conninfo).execute("SELECT system_identifier FROM pg_control_system()")


def test_kill_spares_a_process_with_the_number_of_an_ended_server(tmp_path: Path) -> None:
    (tmp_path / "postmaster.pid").write_text(f"{os.getpid()}\n")
    with pytest.raises(FileNotFoundError, match="has no running server"):
        kill_server(tmp_path)


def test_servers_start_as_copies_of_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the server runs as another user
        template = Path(folder) / "template"
        make_template = [sys.executable, "-m", "kestrel.testing.postgres", str(template)]
        subprocess.run(make_template, check=True, timeout=PATIENCE_S)
        monkeypatch.setenv("KESTREL_PG_TEMPLATE", str(template))
        with PrivateServer() as one, PrivateServer() as another:
            shared = system(one)
            assert system(another) == shared
        monkeypatch.delenv("KESTREL_PG_TEMPLATE")
        with PrivateServer() as created:
            assert system(created) != shared
