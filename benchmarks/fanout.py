"""Cost of fanout children in the journal and the scroll: puts to queues with none and with up to a thousand.

    python -m benchmarks.fanout

Speed: each storage has a real server process with all queues. One client per server sends 64 sets of 1 KiB over the
loopback to one parent, waits for the replies, and continues with another parent in random order. The servers take
turns. The cost for each parent is compared with that of the queue without children in the same round, and the scroll is
compared with the journal.

Memory: items are put in the same way in a fresh process. The growth of Python's allocated memory is divided by the
number of items. Bytes written are counted at the disk interface, and as the growth of the files. Then items are taken
from one child only.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from twisted.internet.task import Clock

from benchmarks.harness import (
    Column,
    Results,
    in_fresh_process,
    options_parser,
    progress,
    require_room,
    scratch_folder,
    spread,
)
from benchmarks.journals import ADD_MS
from benchmarks.process_cost import Cost, Watch
from benchmarks.storages import JOURNAL, SCROLL, STORAGES, CountingDisk, bytes_in, make_storage
from kestrel.config.units import GIB
from kestrel.journal.records import encode_item
from kestrel.server.process import raise_file_limit
from kestrel.testing.server import MemoryServer
from tests.memcache_text import set_
from tests.server.running import Client, Processes

ITEM_BYTES: Final = 1024
BATCH: Final = 64
MANY: Final = 1000
"""Parents with at least this many children get fewer batches."""
CONFIGS: Final = {JOURNAL: 'queuePath = "queues"\n', SCROLL: 'storage = "scroll:queues"\n'}
COLUMNS: Final = (
    Column("storage", "storage"),
    Column("children", "children", ",d"),
    Column("puts_per_s", "puts/s", ",.0f"),
    Column("items_per_s", "items/s", ",.0f"),
    Column("cost", "to none, clock", ".2f"),
    Column("cpu_cost", "to none, CPU", ".2f"),
    Column("cpu_cost_least", "least", ".2f"),
    Column("cpu_cost_most", "most", ".2f"),
    Column("cpu_us", "us of CPU", ",.1f"),
    Column("cpu_us_per_child", "a child", ".1f"),
    Column("to_journal", "to the journal, CPU", ".2f"),
    Column("written_per_put", "bytes written", ",.0f"),
    Column("folder_per_put", "bytes in files", ",.0f"),
    Column("get_cpu_us", "get from a child, us", ",.1f"),
    Column("bytes_per_item", "bytes an item", ",.1f"),
    Column("bytes_per_child", "bytes a child", ".1f"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    children: Sequence[int]
    """The number of children of each parent."""
    rounds: int
    batches: int
    """Batches for each parent in a round. A parent with `MANY` children gets one."""
    kept_batches: int
    """Batches put while memory is measured."""
    gets: int
    """Gets from one child."""
    disk_bytes: int
    """The disk space needed."""

    def batches_for(self, children: int) -> int:
        """Return the number of batches in a round for a parent with that many children."""
        return 1 if children >= MANY else self.batches


FULL: Final = Sizes((0, 1, 10, 100, 1000), 9, 10, 16, 1000, 6 * GIB)
SHORT: Final = Sizes((0, 1, 10, 100), 2, 2, 16, 100, GIB // 4)


def _parent(children: int) -> bytes:
    return b"parent-%d" % children


def _family(children: int) -> list[bytes]:
    """Return the names of a parent and its children."""
    parent = _parent(children)
    return [parent, *(b"%b+child-%d" % (parent, number) for number in range(children))]


# Speed.


class Load:
    """Puts to one parent."""

    def __init__(self, client: Client, watch: Watch, children: int, item: bytes) -> None:
        self._client = client
        self._watch = watch
        self._sets = set_(_parent(children), item) * BATCH

    def put(self, cost: Cost) -> None:
        """Put one batch of items, and add its cost."""
        began = self._watch.now()
        self._client.ask(self._sets, b"STORED\r\n" * BATCH)
        cost.add(BATCH, began, self._watch.now())


Round = dict[tuple[str, int], Cost]
"""Costs by storage and number of children."""


def costs_of_puts(sizes: Sizes, seed: int) -> list[Round]:
    """Measure puts. Return the costs of each round."""
    dice = random.Random(seed)
    with scratch_folder() as folder, ExitStack() as stack:
        loads: dict[tuple[str, int], Load] = {}
        clients = {}
        for storage in STORAGES:
            (folder / storage).mkdir()
            server = stack.enter_context(Processes(folder / storage)).serve(CONFIGS[storage])
            client = clients[storage] = stack.enter_context(server.connect())
            for queue in (queue for children in sizes.children for queue in _family(children)):
                # The peek creates the queue.
                client.ask(b"get %b/peek\r\n" % queue, b"END\r\n")
            watch, item = Watch(server.pid), dice.randbytes(ITEM_BYTES)
            loads |= {(storage, children): Load(client, watch, children, item) for children in sizes.children}
        for load in loads.values():
            load.put(Cost())
        rounds = []
        for number in range(sizes.rounds):
            progress(f"fanout: round {number + 1} of {sizes.rounds}", number, sizes.rounds)
            costs = {each: Cost() for each in loads}
            for turn in range(sizes.batches):
                due = [each for each in loads if turn < sizes.batches_for(each[1])]
                for each in dice.sample(due, len(due)):
                    loads[each].put(costs[each])
            rounds.append(costs)
        progress("", 1, 1)
        for client in clients.values():
            _check_counts(client, sizes)
    return rounds


def _check_counts(client: Client, sizes: Sizes) -> None:
    stats = client.stats()
    for children in sizes.children:
        items = BATCH * (1 + sizes.rounds * sizes.batches_for(children))
        for name in map(bytes.decode, _family(children)):
            if stats[f"queue_{name}_items"] != str(items):
                raise ValueError(f"{name} has {stats[f'queue_{name}_items']} items, not {items}")


# Memory, and bytes written.


class Kept(NamedTuple):
    """The cost of storing an item that was put to a parent with all its children."""

    bytes: float
    """Bytes of memory per item, in all queues together."""
    written: float
    """Bytes written per item."""
    in_files: float
    """Growth of the files per item, in bytes."""
    get_cpu_s: float | None
    """CPU seconds of a get from one of the children; None without children."""


def keep(folder: Path, storage: str, children: int, sizes: Sizes, seed: int) -> Kept:
    """Put batches to a parent in this process, over that storage. Return the cost per item."""
    # The server does this too.
    raise_file_limit()
    clock, disk = Clock(), CountingDisk()
    server = MemoryServer(make_storage(storage, folder, clock, disk=disk), clock=clock)
    for queue in _family(children):
        server.manager.queue(queue)
    dice = random.Random(seed)
    _put_batch(server, children, dice)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    written_before, files_before = disk.bytes_written, bytes_in(folder)
    for _ in range(sizes.kept_batches):
        _put_batch(server, children, dice)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    written, in_files = disk.bytes_written - written_before, bytes_in(folder) - files_before
    items = sizes.kept_batches * BATCH
    get_cpu_s = _get_cpu_s(server, children, min(items, sizes.gets)) if children else None
    return Kept(grown / items, written / items, in_files / items, get_cpu_s)


def _put_batch(server: MemoryServer, children: int, dice: random.Random) -> None:
    for _ in range(BATCH):
        server.manager.put(_parent(children), dice.randbytes(ITEM_BYTES), 0)
    server.settle()


def _get_cpu_s(server: MemoryServer, children: int, count: int) -> float:
    """Return the CPU seconds of a get from a child. Its siblings keep their items."""
    client, queue = server.connect(), _family(children)[1]
    began = time.process_time()
    for _ in range(count):
        if not client.ask(b"get %b\r\n" % queue).startswith(b"VALUE "):
            raise ValueError("an item is missing")
    return (time.process_time() - began) / count


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Measure speed, then memory and bytes written, and add the results."""
    rounds = costs_of_puts(sizes, seed)
    places = [(storage, children) for storage in STORAGES for children in sizes.children]
    kept = {}
    for number, (storage, children) in enumerate(places):
        progress(f"fanout: {storage}, {children} children, memory", number, len(places))
        with scratch_folder() as folder:
            kept[storage, children] = in_fresh_process(keep, folder, storage, children, sizes, seed)
    progress("", 1, 1)
    for storage, children in places:
        here, none = kept[storage, children], kept[storage, 0]
        pairs = [(costs[storage, children], costs[storage, 0]) for costs in rounds]
        cpu_cost = spread([without.per_cpu_s / with_children.per_cpu_s for with_children, without in pairs])
        puts_per_s = spread([with_children.per_s for with_children, _ in pairs]).median
        to_journal = [costs[JOURNAL, children].per_cpu_s / costs[storage, children].per_cpu_s for costs in rounds]
        results.add(
            storage=storage,
            children=children,
            puts_per_s=puts_per_s,
            items_per_s=puts_per_s * (1 + children),
            cost=spread([without.per_s / with_children.per_s for with_children, without in pairs]).median,
            cpu_cost=cpu_cost.median,
            cpu_cost_least=cpu_cost.least,
            cpu_cost_most=cpu_cost.most,
            cpu_us=spread([1 / with_children.per_cpu_s for with_children, _ in pairs]).median * 1_000_000,
            to_journal=spread(to_journal).median,
            written_per_put=here.written,
            folder_per_put=here.in_files,
            bytes_per_item=here.bytes,
            **(_for_each_child(children, pairs, here, none) if children else {}),
        )


def _for_each_child(children: int, pairs: Sequence[tuple[Cost, Cost]], here: Kept, none: Kept) -> dict[str, float]:
    seconds = spread([1 / with_children.per_cpu_s - 1 / without.per_cpu_s for with_children, without in pairs]).median
    return {
        "cpu_us_per_child": seconds * 1_000_000 / children,
        "bytes_per_child": (here.bytes - none.bytes) / children,
        "get_cpu_us": (here.get_cpu_s or 0) * 1_000_000,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    sizes = SHORT if options.short else FULL
    require_room(sizes.disk_bytes)
    with Results("fanout", COLUMNS, as_json=options.json) as results:
        measure(results, sizes, options.seed)
    if not options.json:
        record = sys.getsizeof(encode_item(bytes(ITEM_BYTES), ADD_MS, 0))
        print(f"\nA record of an item of {ITEM_BYTES} bytes takes {record} bytes in memory.")


if __name__ == "__main__":
    main()
