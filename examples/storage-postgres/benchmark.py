"""A benchmark of the PostgreSQL storage against the journal: `python benchmark.py [--rounds 5] [CONNINFO]`.

Both sync each commit (the journal with syncJournal = 0). They alternate, and each round starts with empty storages. The
results are medians of the rounds and of their ratios. Without CONNINFO a private PostgreSQL with default settings runs
in the folder for temporary files, like the journal.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import psycopg
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from kestrel.config.model import QueueSettings
from kestrel.storage.interfaces import IQueueStorage, IStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.total_memory import MemoryLimit
from kestrel_postgres.factory import PostgresStorageFactory
from kestrel_postgres.testing import PrivateServer

SETTINGS: Final = QueueSettings(sync_journal_ms=0)

ITEM: Final = b"x" * 1024

SCHEMA: Final = "kestrel_benchmark"

Measure = Callable[[IStorage], Awaitable[float]]


async def committed(storage: IStorage, *queues: IQueueStorage) -> None:
    """Commit the changes of these queues, and wait until they are safe."""
    await gatherResults([outcome for _, outcome in storage.commit(queues)])


async def put_one_by_one(storage: IStorage) -> float:
    """Return the items per second that one client puts. It waits for each reply."""
    queue = storage.queue(b"one", SETTINGS)
    begin = time.perf_counter()
    for _ in range(300):
        storage.put([queue], ITEM, 0, 0)
        await committed(storage, queue)
    return 300 / (time.perf_counter() - begin)


async def put_by_hundreds(storage: IStorage, name: bytes = b"hundreds") -> float:
    """Return the items per second that a hundred clients put. All wait for their replies."""
    queue = storage.queue(name, SETTINGS)
    begin = time.perf_counter()
    for _ in range(100):
        for _ in range(100):
            storage.put([queue], ITEM, 0, 0)
        await committed(storage, queue)
    return 10_000 / (time.perf_counter() - begin)


async def put_to_ten_queues(storage: IStorage) -> float:
    """Return the items per second that a thousand clients put, a hundred for each of ten queues."""
    begin = time.perf_counter()
    names = [b"ten-%d" % number for number in range(10)]
    await gatherResults([Deferred.fromCoroutine(put_by_hundreds(storage, name)) for name in names])
    return 100_000 / (time.perf_counter() - begin)


async def get_by_hundreds(storage: IStorage) -> float:
    """Return the items per second that a hundred clients take and confirm. `put_by_hundreds` has put the items."""
    queue = storage.queue(b"hundreds", SETTINGS)
    begin = time.perf_counter()
    taken = 0
    while taken < 10_000:
        xids: list[int] = []
        while len(xids) < 100 and taken + len(xids) < 10_000:
            item = queue.take(True)
            if item is not None:
                xids.append(item.xid)
                continue
            filling = queue.fill()
            if filling is not None:
                await filling
        queue.confirm(xids)
        await committed(storage, queue)
        taken += len(xids)
    return 10_000 / (time.perf_counter() - begin)


MEASURES: Final[dict[str, Measure]] = {
    "put, one client": put_one_by_one,
    "put, 100 clients": put_by_hundreds,
    "put, 1000 clients, 10 queues": put_to_ten_queues,
    "get, 100 clients": get_by_hundreds,
}


@asynccontextmanager
async def started(storage: IStorage) -> AsyncIterator[IStorage]:
    """Start an empty storage, and close it at the end."""
    await storage.start(lambda name: SETTINGS)
    try:
        yield storage
    finally:
        await storage.close()


async def figures(storage: IStorage) -> dict[str, float]:
    """Return the result of each measurement on an empty storage."""
    async with started(storage):
        return {name: await measure(storage) for name, measure in MEASURES.items()}


def in_journal(clock: IReactorTime, folder: Path) -> IStorage:
    """Return a journal storage for an empty folder."""
    return JournalStorage(os.fsencode(folder), clock, deferToThread, reserve_bytes=0)


def in_postgres(clock: IReactorTime, conninfo: str) -> IStorage:
    """Return a PostgreSQL storage for a new schema."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    return PostgresStorageFactory().storage(conninfo, {"schema": SCHEMA}, clock, deferToThread, MemoryLimit())


@contextmanager
def database(conninfo: str) -> Iterator[str]:
    """Give the connection string, or that of a private server if it is empty."""
    if conninfo:
        yield conninfo
    else:
        with PrivateServer(is_synced=True) as server:
            yield server.conninfo


async def compare(clock: IReactorTime, conninfo: str, rounds: int) -> None:
    """Measure both storages alternately, and print the results."""
    journal: list[dict[str, float]] = []
    postgres: list[dict[str, float]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="kestrel-benchmark-") as folder:
            journal.append(await figures(in_journal(clock, Path(folder))))
        postgres.append(await figures(in_postgres(clock, conninfo)))
    print(f"{'items of 1 KiB per second':30} {'journal':>9} {'postgres':>9} {'ratio':>7}   (minimum to maximum)")
    for name in MEASURES:
        ratios = [theirs[name] / ours[name] for ours, theirs in zip(journal, postgres, strict=True)]
        middle = [median(each[name] for each in side) for side in (journal, postgres)]
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:30} {middle[0]:9,.0f} {middle[1]:9,.0f} {median(ratios):7.2f}   {spread}")


def main() -> None:
    """Parse the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("conninfo", nargs="?", default="", help="database; deletes its schema kestrel_benchmark")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with database(options.conninfo) as conninfo:
        react(lambda reactor: Deferred.fromCoroutine(compare(reactor, conninfo, options.rounds)))


if __name__ == "__main__":
    main()
