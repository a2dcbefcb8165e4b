"""Memory of a queued item, beyond its data.

    python -m benchmarks.memory

Items are put to a queue in a fresh process, as a server does it. The growth of the resident memory is divided by their
number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmarks.harness import Column, Results, in_fresh_process, options_parser, progress, resident_bytes, spread
from benchmarks.journals import ADD_MS, QUEUE
from kestrel.config.model import QueueSettings
from kestrel.config.units import GIB
from kestrel.disk.files import Disk
from kestrel.journal.records import encode_item
from kestrel.journal.writer import JournalWriter
from kestrel.storage.journal.queue import JournalQueue

COLUMNS: Final = (
    Column("item_bytes", "item", ",d"),
    Column("items", "items", ",d"),
    Column("bytes_over_data", "bytes over the data", ".1f"),
    Column("bytes_over_data_least", "least", ".1f"),
    Column("bytes_over_data_most", "most", ".1f"),
)

BATCH: Final = 64


class Sizes(NamedTuple):
    """The number of items of each size, and of repetitions."""

    items: dict[int, int]
    repeats: int


FULL: Final = Sizes({64: 1_000_000, 1024: 200_000}, 3)
SHORT: Final = Sizes({64: 200_000, 1024: 20_000}, 1)


def bytes_per_item(item_bytes: int, count: int, seed: int) -> float:
    """Put items, and return the growth of this process per item in bytes."""
    queue = JournalQueue(
        QUEUE, QueueSettings(max_memory_size_bytes=64 * GIB), JournalWriter(Disk(), b"", QUEUE, lambda: ADD_MS)
    )
    dice = random.Random(seed)
    _put(queue, dice, item_bytes, BATCH)
    before = resident_bytes()
    for _ in range(count // BATCH):
        _put(queue, dice, item_bytes, BATCH)
    return (resident_bytes() - before) / (count // BATCH * BATCH)


def _put(queue: JournalQueue, dice: random.Random, item_bytes: int, count: int) -> None:
    for _ in range(count):
        queue.put(encode_item(dice.randbytes(item_bytes), ADD_MS, 0))
    # The commit of a tick does this.
    queue.take_pending()


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Measure items of each size, and add the results."""
    for item_bytes, count in sizes.items.items():
        over = []
        for repeat in range(sizes.repeats):
            progress(f"memory, {item_bytes} B", repeat, sizes.repeats)
            over.append(in_fresh_process(bytes_per_item, item_bytes, count, seed) - item_bytes)
        progress("", 1, 1)
        figures = spread(over)
        results.add(
            item_bytes=item_bytes,
            items=count,
            bytes_over_data=figures.median,
            bytes_over_data_least=figures.least,
            bytes_over_data_most=figures.most,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    with Results("memory", COLUMNS, as_json=options.json) as results:
        measure(results, SHORT if options.short else FULL, options.seed)


if __name__ == "__main__":
    main()
