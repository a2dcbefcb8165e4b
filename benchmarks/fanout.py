"""What children cost: a put to a queue with none, one, ten and a hundred of them, each with its own journal.

    python -m benchmarks.fanout

Speed: a real server process has all these queues. One client sends it, over the loopback, 64 sets of 1 KiB at once to
one of the parents, waits for the replies, and goes on with another, in ever new orders. What a parent took in a round
is compared with what the queue without children took in the same round. Memory: in a fresh process items are put
in the same way, and the growth of what Python has allocated is divided by their number; how often an item was encoded
is counted.
"""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple
from unittest import mock

from benchmarks.cost import Cost, Watch
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
from kestrel.config.units import GIB
from kestrel.journal.records import encode_item
from kestrel.server.reactor import raise_file_limit
from kestrel.testing.server import MemoryServer
from tests.server.running import Client, Processes, set_request

ITEM_BYTES: Final = 1024
BATCH: Final = 64
CHILDREN: Final = (0, 1, 10, 100)

COLUMNS: Final = (
    Column("children", "children", ",d"),
    Column("puts_per_s", "puts/s", ",.0f"),
    Column("items_per_s", "items/s", ",.0f"),
    Column("cost", "to none, clock", ".2f"),
    Column("cpu_cost", "to none, CPU", ".2f"),
    Column("cpu_cost_least", "least", ".2f"),
    Column("cpu_cost_most", "most", ".2f"),
    Column("cpu_us_per_child", "us of CPU a child", ".1f"),
    Column("encodings", "encodings of an item", ".2f"),
    Column("bytes_per_item", "bytes an item", ",.1f"),
    Column("bytes_per_child", "bytes a child", ".1f"),
)


class Sizes(NamedTuple):
    """How much is measured."""

    rounds: int
    batches: int
    """Put to each parent in a round."""
    kept_batches: int
    """Put where memory is measured."""
    disk_bytes: int
    """The room that is needed."""


FULL: Final = Sizes(9, 10, 64, 2 * GIB)
SHORT: Final = Sizes(2, 2, 16, GIB // 4)


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


def costs_of_puts(sizes: Sizes, seed: int) -> list[dict[int, Cost]]:
    """What puts took, for each round by the number of children."""
    dice = random.Random(seed)
    with scratch_folder() as folder, ExitStack() as stack:
        server = stack.enter_context(Processes(folder)).serve('queuePath = "queues"\n')
        client = stack.enter_context(server.connect())
        for queue in (queue for children in CHILDREN for queue in _family(children)):
            client.ask(b"get %b/peek\r\n" % queue, b"END\r\n")  # it comes into being
        watch, item = Watch(server.pid), dice.randbytes(ITEM_BYTES)
        loads = {children: Load(client, watch, children, item) for children in CHILDREN}
        for load in loads.values():
            load.put(Cost())
        rounds = []
        for number in range(sizes.rounds):
            progress(f"fanout: round {number + 1} of {sizes.rounds}", number, sizes.rounds)
            costs = {children: Cost() for children in CHILDREN}
            for _ in range(sizes.batches):
                for children in dice.sample(CHILDREN, len(CHILDREN)):
                    loads[children].put(costs[children])
            rounds.append(costs)
        progress("", 1, 1)
        _check_counts(client, BATCH * (1 + sizes.rounds * sizes.batches))
    return rounds


def _check_counts(client: Client, items: int) -> None:
    stats = client.stats()
    for name in (name.decode() for children in CHILDREN for name in _family(children)):
        if stats[f"queue_{name}_items"] != str(items):
            raise ValueError(f"{name} has {stats[f'queue_{name}_items']} items in place of {items}")


# Memory.


class Kept(NamedTuple):
    """What an item that was put to a parent and its children is there."""

    encodings: float
    """How often it was encoded."""
    bytes: float
    """What it takes in memory, in all of the queues together."""


def keep(folder: Path, children: int, batches: int, seed: int) -> Kept:
    """Put so many batches to a parent in this process, over journals in that folder."""
    raise_file_limit()  # as the server
    server = MemoryServer(folder=folder)
    for queue in _family(children):
        server.manager.queue(queue)
    dice = random.Random(seed)
    with mock.patch("kestrel.storage.journal.encode_item", wraps=encode_item) as encode:
        _put_batch(server, children, dice)
    encodings = encode.call_count / BATCH
    encode.reset_mock()  # it has kept the items
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(batches):
        _put_batch(server, children, dice)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return Kept(encodings, grown / (batches * BATCH))


def _put_batch(server: MemoryServer, children: int, dice: random.Random) -> None:
    for _ in range(BATCH):
        server.manager.put(_parent(children), dice.randbytes(ITEM_BYTES), 0)
    server.settle()


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Speed, then memory."""
    rounds = costs_of_puts(sizes, seed)
    kept = {}
    for children in CHILDREN:
        with scratch_folder() as folder:
            kept[children] = in_fresh_process(keep, folder, children, sizes.kept_batches, seed)
    for children in CHILDREN:
        pairs = [(costs[children], costs[0]) for costs in rounds]
        cpu_cost = spread([none.per_cpu_s / here.per_cpu_s for here, none in pairs])
        puts_per_s = spread([here.per_s for here, _ in pairs]).median
        results.add(
            children=children,
            puts_per_s=puts_per_s,
            items_per_s=puts_per_s * (1 + children),
            cost=spread([none.per_s / here.per_s for here, none in pairs]).median,
            cpu_cost=cpu_cost.median,
            cpu_cost_least=cpu_cost.least,
            cpu_cost_most=cpu_cost.most,
            encodings=kept[children].encodings,
            bytes_per_item=kept[children].bytes,
            **(_for_each_child(children, pairs, kept[children], kept[0]) if children else {}),
        )


def _for_each_child(children: int, pairs: Sequence[tuple[Cost, Cost]], here: Kept, none: Kept) -> dict[str, float]:
    seconds = spread([1 / with_children.per_cpu_s - 1 / without.per_cpu_s for with_children, without in pairs]).median
    return {
        "cpu_us_per_child": seconds * 1_000_000 / children,
        "bytes_per_child": (here.bytes - none.bytes) / children,
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
