"""What children cost, in the journal and in the scroll: a put to a queue with none of them, and with up to a thousand.

    python -m benchmarks.fanout

Speed: a real server process for each storage has all these queues. One client of each sends it, over the loopback, 64
sets of 1 KiB at once to one of the parents, waits for the replies, and goes on with another, in ever new orders; the
servers take turns. What a parent took in a round is compared with what the queue without children took in the same
round, and the scroll with the journal. Memory: in a fresh process items are put in the same way, and the growth of what
Python has allocated is divided by their number; and what was written is counted: at the
disk's face, and as the growth of the files in the folder. Then one child is taken from, which others have no part in.
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
from kestrel.server.reactor import raise_file_limit
from kestrel.testing.server import MemoryServer
from tests.server.running import Client, Processes, set_request

ITEM_BYTES: Final = 1024
BATCH: Final = 64
MANY: Final = 1000
"""To so many children less is put."""
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
    """How much is measured."""

    children: Sequence[int]
    """How many each parent has."""
    rounds: int
    batches: int
    """Put to each parent in a round, but only one where there are very many children."""
    kept_batches: int
    """Put where memory is measured."""
    gets: int
    """From one child."""
    disk_bytes: int
    """The room that is needed."""

    def batches_for(self, children: int) -> int:
        """How many are put in a round to a parent with so many children."""
        return 1 if children >= MANY else self.batches


FULL: Final = Sizes((0, 1, 10, 100, 1000), 9, 10, 16, 1000, 6 * GIB)
SHORT: Final = Sizes((0, 1, 10, 100), 2, 2, 16, 100, GIB // 4)


def _parent(children: int) -> bytes:
    return b"parent-%d" % children


def _family(children: int) -> list[bytes]:
    """The names of a parent and of so many children."""
    parent = _parent(children)
    return [parent, *(b"%b+child-%d" % (parent, number) for number in range(children))]


# Speed.


class Load:
    """Puts to one parent."""

    def __init__(self, client: Client, watch: Watch, children: int, item: bytes) -> None:
        self._client = client
        self._watch = watch
        self._sets = set_request(_parent(children), item) * BATCH

    def put(self, cost: Cost) -> None:
        """One batch of items."""
        began = self._watch.now()
        self._client.ask(self._sets, b"STORED\r\n" * BATCH)
        cost.add(BATCH, began, self._watch.now())


Round = dict[tuple[str, int], Cost]
"""By the storage and the number of children."""


def costs_of_puts(sizes: Sizes, seed: int) -> list[Round]:
    """What puts took, for each round."""
    dice = random.Random(seed)
    with scratch_folder() as folder, ExitStack() as stack:
        loads: dict[tuple[str, int], Load] = {}
        clients = {}
        for storage in STORAGES:
            (folder / storage).mkdir()
            server = stack.enter_context(Processes(folder / storage)).serve(CONFIGS[storage])
            client = clients[storage] = stack.enter_context(server.connect())
            for queue in (queue for children in sizes.children for queue in _family(children)):
                client.ask(b"get %b/peek\r\n" % queue, b"END\r\n")  # it comes into being
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
                raise ValueError(f"{name} has {stats[f'queue_{name}_items']} items in place of {items}")


# Memory, and what is written.


class Kept(NamedTuple):
    """What an item that was put to a parent and its children is there."""

    bytes: float
    """What it takes in memory, in all of the queues together."""
    written: float
    """How many bytes were written for it,"""
    in_files: float
    """and by how many the files have grown."""
    get_cpu_s: float | None
    """What a get from one of the children takes; None without children."""


def keep(folder: Path, storage: str, children: int, sizes: Sizes, seed: int) -> Kept:
    """Put batches to a parent in this process, over that storage."""
    raise_file_limit()  # as the server
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
    """What one get after the other takes from a child that no other is taken from."""
    client, queue = server.connect(), _family(children)[1]
    began = time.process_time()
    for _ in range(count):
        if not client.ask(b"get %b\r\n" % queue).startswith(b"VALUE "):
            raise ValueError("an item is missing")
    return (time.process_time() - began) / count


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Speed, then memory and what is written."""
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
