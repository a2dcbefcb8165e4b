"""Cost of a put and a get in the scroll, compared with the journal.

    python -m benchmarks.operations

Through the storage alone: 64 puts and a commit, then 64 takes and a commit. Through a whole server in this process,
without a network: 64 pipelined sets, then 64 pipelined gets. The storages take turns of a few batches in random order,
and the results of a round are divided by each other. With syncJournal 0 each batch is synced, in the calling thread.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from twisted.internet.task import Clock

from benchmarks.harness import Column, Results, in_fresh_process, options_parser, progress, scratch_folder, spread
from benchmarks.journals import ADD_MS, QUEUE
from benchmarks.process_cost import Cost, Moment, Watch
from benchmarks.storages import JOURNAL, SCROLL, STORAGES, CountingDisk, Opened, make_storage
from kestrel.config.model import Config, QueueOverrides, QueueSettings
from kestrel.testing.server import MemoryServer
from tests.memcache_text import set_

BATCH: Final = 64
OPERATIONS: Final = ("put", "get")

COLUMNS: Final = (
    Column("through", "through"),
    Column("sync_journal", "syncJournal"),
    Column("item_bytes", "item", ",d"),
    Column("operation", "what"),
    Column("journal_cpu_us", "journal, us of CPU", ".2f"),
    Column("scroll_cpu_us", "scroll, us of CPU", ".2f"),
    Column("cpu_cost", "to the journal, CPU", ".2f"),
    Column("cpu_cost_least", "least", ".2f"),
    Column("cpu_cost_most", "most", ".2f"),
    Column("cost", "by the clock", ".2f"),
    Column("journal_bytes", "journal, bytes", ",.1f"),
    Column("scroll_bytes", "scroll, bytes", ",.1f"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    item_bytes: Sequence[int]
    rounds: int
    turns: int
    """Turns of each storage in a round."""
    batches: int
    """Batches of puts in a turn, and as many batches of gets."""


FULL: Final = Sizes((64, 1024), 9, 10, 20)
SHORT: Final = Sizes((64, 1024), 2, 2, 5)


class Load(Protocol):
    """An object that puts and gets batches. `disk` counts the bytes written."""

    disk: CountingDisk

    def put(self) -> None:
        """Put one batch."""

    def get(self) -> None:
        """Get one batch."""


class StorageLoad:
    """Puts and gets of a storage, without a server."""

    def __init__(self, storage: str, folder: Path, settings: QueueSettings, item: bytes) -> None:
        self._opened = Opened(storage, folder, settings)
        self.disk = self._opened.disk
        self._storage = self._opened.storage
        self._queue = self._opened.queue()
        self._item = item

    def put(self) -> None:
        """Put one batch, and check that it is committed."""
        storage, group = self._storage, (self._queue,)
        for _ in range(BATCH):
            storage.put(group, self._item, ADD_MS, 0)
        self._check(storage.commit(group))

    def get(self) -> None:
        """Take one batch, and check that it is committed."""
        queue = self._queue
        for _ in range(BATCH):
            if queue.take(False) is None:
                raise ValueError("an item is missing")
        self._check(self._storage.commit((queue,)))

    @staticmethod
    def _check(pending: Any) -> None:
        safe: list[object] = []
        for _, outcome in pending:
            outcome.addCallback(safe.append)
        if len(safe) != len(pending):
            raise ValueError("a batch was not committed")


class ServerLoad:
    """Sets and gets of a whole server in memory."""

    def __init__(self, storage: str, folder: Path, settings: QueueSettings, item: bytes) -> None:
        self.disk = CountingDisk()
        clock = Clock()
        config = Config(default=QueueOverrides({"sync_journal_ms": settings.sync_journal_ms}))
        server = MemoryServer(make_storage(storage, folder, clock, disk=self.disk), config=config, clock=clock)
        self._client = server.connect()
        self._sets = set_(QUEUE, item) * BATCH
        self._gets = b"get %b\r\n" % QUEUE * BATCH
        self._values = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (QUEUE, len(item), item) * BATCH

    def put(self) -> None:
        """Set one batch of items."""
        if self._client.ask(self._sets) != b"STORED\r\n" * BATCH:
            raise ValueError("a batch was not stored")

    def get(self) -> None:
        """Get one batch of items."""
        if self._client.ask(self._gets) != self._values:
            raise ValueError("the reply is not a batch of items")


class Setting(NamedTuple):
    """The settings that both storages share."""

    through: str
    sync_journal_ms: int | None
    item_bytes: int


class Each(NamedTuple):
    """The cost of one put, or one get, in a round."""

    seconds: float
    cpu_seconds: float
    bytes_written: float


Round = dict[tuple[str, str], Each]
"""Costs by storage and operation."""


class _Took:
    def __init__(self) -> None:
        self._cost = Cost()
        self._bytes_written = self._operations = 0

    def add(self, began: Moment, ended: Moment, bytes_written: int) -> None:
        self._cost.add(BATCH, began, ended)
        self._bytes_written += bytes_written
        self._operations += BATCH

    def each(self) -> Each:
        return Each(1 / self._cost.per_s, 1 / self._cost.per_cpu_s, self._bytes_written / self._operations)


def compare(folder: Path, setting: Setting, sizes: Sizes, seed: int) -> list[Round]:
    """Measure both storages. Return the costs of each round."""
    dice, watch = random.Random(seed), Watch(os.getpid())
    item, settings = dice.randbytes(setting.item_bytes), QueueSettings(sync_journal_ms=setting.sync_journal_ms)
    loads: dict[str, Load] = {}
    for storage in STORAGES:
        (folder / storage).mkdir()
        loads[storage] = LOADS[setting.through](storage, folder / storage, settings, item)
        _turn(loads[storage], sizes.batches, watch, {operation: _Took() for operation in OPERATIONS})
    rounds = []
    for _ in range(sizes.rounds):
        took = {storage: {operation: _Took() for operation in OPERATIONS} for storage in STORAGES}
        for _ in range(sizes.turns):
            for storage in dice.sample(STORAGES, len(STORAGES)):
                _turn(loads[storage], sizes.batches, watch, took[storage])
        rounds.append({(storage, what): each.each() for storage, by in took.items() for what, each in by.items()})
    return rounds


def _turn(load: Load, batches: int, watch: Watch, took: Mapping[str, _Took]) -> None:
    for _ in range(batches):
        for operation, do in (("put", load.put), ("get", load.get)):
            written, began = load.disk.bytes_written, watch.now()
            do()
            took[operation].add(began, watch.now(), load.disk.bytes_written - written)


LOADS: Final[Mapping[str, Callable[[str, Path, QueueSettings, bytes], Load]]] = {
    "storage": StorageLoad,
    "server": ServerLoad,
}


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Measure both storages directly and through a server, for each syncJournal and item size. Add the results."""
    settings = [
        Setting(through, sync_journal_ms, item_bytes)
        for through in LOADS
        for sync_journal_ms in (None, 0)
        for item_bytes in sizes.item_bytes
    ]
    for number, setting in enumerate(settings):
        progress(f"operations: {setting}", number, len(settings))
        with scratch_folder() as folder:
            rounds = in_fresh_process(compare, folder, setting, sizes, seed)
        progress("", 1, 1)
        for operation in OPERATIONS:
            _add(results, setting, operation, rounds)


def _add(results: Results, setting: Setting, operation: str, rounds: Sequence[Round]) -> None:
    pairs = [(each[JOURNAL, operation], each[SCROLL, operation]) for each in rounds]
    by_cpu = spread([scroll.cpu_seconds / journal.cpu_seconds for journal, scroll in pairs])
    results.add(
        through=setting.through,
        sync_journal="never" if setting.sync_journal_ms is None else str(setting.sync_journal_ms),
        item_bytes=setting.item_bytes,
        operation=operation,
        journal_cpu_us=spread([journal.cpu_seconds for journal, _ in pairs]).median * 1_000_000,
        scroll_cpu_us=spread([scroll.cpu_seconds for _, scroll in pairs]).median * 1_000_000,
        cpu_cost=by_cpu.median,
        cpu_cost_least=by_cpu.least,
        cpu_cost_most=by_cpu.most,
        cost=spread([scroll.seconds / journal.seconds for journal, scroll in pairs]).median,
        journal_bytes=spread([journal.bytes_written for journal, _ in pairs]).median,
        scroll_bytes=spread([scroll.bytes_written for _, scroll in pairs]).median,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    with Results("operations", COLUMNS, as_json=options.json) as results:
        measure(results, SHORT if options.short else FULL, options.seed)


if __name__ == "__main__":
    main()
