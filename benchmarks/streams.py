"""Speed of reading live queues as a Spark stream, and of writing to them, compared with a plain client.

    python -m benchmarks.streams

A queue is filled, and then read to its end. Spark reads it with one and with two parallel tasks, with the trigger
`availableNow`, into a sink that accepts and drops all rows. A plain client in Python requests one page after the other.

*exactly_once* reads scrolls by item ids. The client uses pages of 4 MiB and releases them at the end. *at_least_once*
opens items of journals and confirms them. The client uses 1000 items at a time. *sink* writes a DataFrame to journals.

Each server is a process of its own. With two servers, each has half of the items. All readers count the items and sum
their CRC-32 values, which must match the items that were put. Each Spark session is warmed up, and takes turns with the
client. *start* is the time of a stream over an empty queue (not measured with --short).
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self
from zlib import crc32

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from benchmarks.harness import (
    MB,
    Column,
    Figure,
    Results,
    in_fresh_process,
    options_parser,
    progress,
    require_room,
    scratch_folder,
    spread,
)
from benchmarks.process_cost import Watch
from kestrel.client.call import Call
from kestrel.client.retrying_server import RetryingServer
from kestrel.client.thrift import RangeItem, ThriftCalls
from kestrel.protocols.codec import RangeState
from kestrel.spark.session import session
from kestrel.spark.stream.options import READER, Delivery
from kestrel.spark.stream.ranges import PAGE_BYTES
from tests.server.running import Processes

QUEUE: Final = b"work"
WHO: Final = READER.encode()
"""The reader name of streams, which the plain client uses for reads by id."""

PLAIN: Final = "plain Python"
MASTERS: Final = ("local[1]", "local[2]")

EXACTLY_ONCE: Final = Delivery.EXACTLY_ONCE.value
AT_LEAST_ONCE: Final = Delivery.AT_LEAST_ONCE.value
SINK: Final = "sink"

STORAGES: Final[Mapping[str, str]] = {
    EXACTLY_ONCE: "scroll:queues",
    AT_LEAST_ONCE: "journal:queues",
    SINK: "journal:queues",
}
"""The storage of each way to use a queue."""

MOST_SERVERS: Final = 2

CONFIG: Final = "maxOpenTransactions = 100000\n"
"""With the default of 1 a client gets one open read a request."""

ITEMS_AT_ONCE: Final = 1000
PUT_BYTES: Final = 1 << 20
HOLD_MS: Final = 60_000
TURN_S: Final = 600.0
"""Seconds after which a stream counts as stuck."""

COLUMNS: Final = (
    Column("way", "way"),
    Column("servers", "servers", ",d"),
    Column("item_bytes", "item", ",d"),
    Column("where", "by"),
    Column("items_per_s", "items/s", ",.0f"),
    Column("items_per_s_least", "least", ",.0f"),
    Column("items_per_s_most", "best", ",.0f"),
    Column("mb_per_s", "MB/s", ",.1f"),
    Column("to_plain", "to plain", ".2f"),
    Column("to_one_core", "to one core", ".2f"),
    Column("reading_to_plain", "to plain without its start", ".2f"),
    Column("start_s", "start in s", ".2f"),
    Column("batches", "batches", ",d"),
    Column("server_us", "server, us of CPU", ".1f"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    items: Mapping[int, int]
    """The number of items, by their size in bytes."""
    repeats: int
    servers: Sequence[int] = (1, MOST_SERVERS)
    masters: Sequence[str] = MASTERS
    warms_up: bool = True


FULL: Final = Sizes({64: 400_000, 1024: 400_000, 4096: 100_000}, 3)
SHORT: Final = Sizes({1024: 2000}, 1, (1,), ("local[2]",), warms_up=False)


class Place(NamedTuple):
    """A running server."""

    address: str
    pid: int


class Case(NamedTuple):
    """The way to use a queue, and the number of servers and the item size."""

    way: str
    servers: int
    item_bytes: int


class Seen(NamedTuple):
    """The items that a reader has received."""

    items: int
    crc: int
    batches: int = 0


class Timed(NamedTuple):
    """The cost of reading the queues once."""

    items: int
    seconds: float
    server_cpu_s: float
    batches: int
    start_s: float = 0.0
    """The duration of the same stream over an empty queue."""

    @property
    def per_s(self) -> float:
        """Items per second."""
        return self.items / self.seconds

    @property
    def reading_per_s(self) -> float | None:
        """Items per second without `start_s`; None if the start takes most of the time, so that the rest is noise."""
        reading_s = self.seconds - self.start_s
        return self.items / reading_s if reading_s > self.seconds / 4 else None


class Pair(NamedTuple):
    """Adjacent runs of Spark and of the client."""

    case: Case
    where: str
    spark: Timed
    plain: Timed


Read = Callable[[Sequence[Place]], Seen]


# Servers and their contents.


@contextmanager
def serving(folder: Path, servers: int) -> Iterator[dict[str, list[Place]]]:
    """Run that many servers with each storage."""
    with ExitStack() as stack:
        places: dict[str, list[Place]] = {}
        for way, storage in STORAGES.items():
            places[way] = []
            for number in range(servers):
                its_folder = folder / f"{way}-{number}"
                its_folder.mkdir()
                server = stack.enter_context(Processes(its_folder)).serve(CONFIG, "--storage", storage)
                places[way].append(Place(f"127.0.0.1:{server.port_of('thrift')}", server.pid))
        yield places


def fill(places: Sequence[Place], item_bytes: int, items: int, seed: int) -> Seen:
    """Put the items, an equal share to each server. Return their count and checksum."""
    body = _body(item_bytes, seed)
    at_once = max(1, min(ITEMS_AT_ONCE, PUT_BYTES // item_bytes))
    crc = 0
    for part, place in enumerate(places):
        first, end = (items * cut // len(places) for cut in (part, part + 1))
        with RetryingServer(place.address) as server:
            for begin in range(first, end, at_once):
                batch = [number.to_bytes(8, "big") + body for number in range(begin, min(end, begin + at_once))]
                crc += sum(map(crc32, batch))
                if server.ask_once(partial(_put, items=batch)) != len(batch):
                    raise ValueError("the queue has no room for the items")
    return Seen(items, crc)


def _body(item_bytes: int, seed: int) -> bytes:
    """Return the part that all items share."""
    return random.Random(seed).randbytes(item_bytes - 8)


def _servers_of(places: Sequence[Place]) -> str:
    return ",".join(place.address for place in places)


def _put(calls: ThriftCalls, items: Sequence[bytes]) -> Call[int]:
    return calls.put(QUEUE, items)


def forget(places: Sequence[Place]) -> None:
    """Delete the queues."""
    for place in places:
        with RetryingServer(place.address) as server:
            server.ask_once(lambda calls: calls.delete(QUEUE))


# Readers.


def by_ranges(places: Sequence[Place]) -> Seen:
    """Read all items by id with a plain client, one server after the other."""
    items = crc = 0
    for place in places:
        with RetryingServer(place.address) as server:
            state = server.ask(lambda calls: calls.open_range(QUEUE, WHO))
            first_id, end_id = state.first_id, state.end_id
            while first_id < end_id and (page := server.ask(partial(_page, first_id=first_id, end_id=end_id))):
                items += len(page)
                crc += sum(crc32(item.data) for item in page)
                first_id = page[-1].id + 1
            server.ask(partial(_release, end_id=end_id))
    return Seen(items, crc)


def _page(calls: ThriftCalls, first_id: int, end_id: int) -> Call[list[RangeItem]]:
    return calls.read_range(QUEUE, WHO, first_id, end_id, PAGE_BYTES)


def _release(calls: ThriftCalls, end_id: int) -> Call[RangeState]:
    return calls.release_range(QUEUE, WHO, end_id)


def by_opens(places: Sequence[Place]) -> Seen:
    """Open and confirm all items with a plain client, one server after the other."""
    items = crc = 0
    for place in places:
        with RetryingServer(place.address) as server:
            while page := server.ask_once(lambda calls: calls.get(QUEUE, ITEMS_AT_ONCE, 0, HOLD_MS)):
                items += len(page)
                crc += sum(crc32(item.data) for item in page)
                if server.ask_once(partial(_confirm, ids=[item.id for item in page])) != len(page):
                    raise ValueError("open reads ended before they were confirmed")
    return Seen(items, crc)


def _confirm(calls: ThriftCalls, ids: Sequence[int]) -> Call[int]:
    return calls.confirm(QUEUE, ids)


PLAIN_READS: Final[Mapping[str, Read]] = {EXACTLY_ONCE: by_ranges, AT_LEAST_ONCE: by_opens}


class Streams:
    """The streams of one Spark session, each with its own checkpoint in that folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._number = 0

    def write(self, places: Sequence[Place], item_bytes: int, items: int, seed: int) -> None:
        """Put the same items as `fill`."""
        number = sql.unhex(sql.lpad(sql.hex("id"), 16, "0"))
        data = sql.concat(number, sql.lit(_body(item_bytes, seed))).alias("data")
        rows = self._spark.range(items).select(data)
        writing = rows.write.format("kestrel").mode("append").option("queue", QUEUE.decode())
        writing.option("servers", _servers_of(places)).save()

    def read(self, way: str, places: Sequence[Place]) -> Seen:
        """Read all items that are in the queues now."""
        self._number += 1
        options = {
            "servers": _servers_of(places),
            "subscribe": QUEUE.decode(),
            "delivery": way,
        }
        rows = self._spark.readStream.format("kestrel").options(**options).load()
        counted = rows.observe("seen", sql.count(sql.lit(1)).alias("items"), sql.sum(sql.crc32("data")).alias("crc"))
        query = (
            counted.writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / str(self._number)))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(int(TURN_S)):
            query.stop()
            raise ValueError(f"a stream did not end within {TURN_S:.0f} s")
        batches = [each.observedMetrics["seen"] for each in query.recentProgress if "seen" in each.observedMetrics]
        with_items = [batch for batch in batches if batch["items"]]
        return Seen(
            sum(batch["items"] for batch in with_items), sum(batch["crc"] for batch in with_items), len(with_items)
        )


class Cost:
    """The time of a `with` block, and the CPU time of the servers meanwhile."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._watches = [Watch(place.pid) for place in places]

    def __enter__(self) -> Self:
        self.cpu_s = -sum(watch.now().cpu_s for watch in self._watches)
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_s += sum(watch.now().cpu_s for watch in self._watches)


def timed(places: Sequence[Place], put: Seen, read: Read, start_s: float = 0.0) -> Timed:
    """Read all items and check them. Return the cost, and delete the queues."""
    with Cost(places) as cost:
        seen = read(places)
    _check(seen, put)
    forget(places)
    return Timed(seen.items, cost.seconds, cost.cpu_s, seen.batches, start_s)


def timed_write(places: Sequence[Place], put: Seen, write: Callable[[], object]) -> Timed:
    """Write the items of `put` and check them. Return the cost, and delete the queues."""
    with Cost(places) as cost:
        write()
    _check(by_opens(places), put)
    forget(places)
    return Timed(put.items, cost.seconds, cost.cpu_s, 0)


def _check(seen: Seen, put: Seen) -> None:
    if seen._replace(batches=0) != put:
        raise ValueError(f"the {seen.items} items read differ from the {put.items} items put")


# Measurement.


def pairs(places: Mapping[str, Sequence[Place]], folder: Path, sizes: Sizes, seed: int) -> list[Pair]:
    """Run all cases. Called in a process of its own, because it leaves a JVM behind."""
    found: list[Pair] = []
    cases = [Case(*each) for each in _products(places, sizes)]
    total = len(cases) * len(sizes.masters) * sizes.repeats
    for round_number in range(sizes.repeats):
        for where in sizes.masters:
            spark = session("benchmark", settings=_settings(where))
            try:
                streams = Streams(spark, folder / f"{round_number}-{where}")
                starts = _starts(streams, places, sizes, seed) if sizes.warms_up else {}
                for case in cases:
                    progress(f"streams: {where}, {case.way}, {case.item_bytes} B", len(found), total)
                    used = places[case.way][: case.servers]
                    found.append(_pair(streams, used, case, where, starts, sizes, seed))
            finally:
                spark.stop()
    progress("", 1, 1)
    return found


def _products(ways: Iterable[str], sizes: Sizes) -> Iterator[tuple[str, int, int]]:
    for way in ways:
        for servers in sizes.servers:
            for item_bytes in sizes.items:
                yield way, servers, item_bytes


def _settings(where: str) -> dict[str, str]:
    return {
        "spark.master": where,
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }


def _starts(
    streams: Streams, places: Mapping[str, Sequence[Place]], sizes: Sizes, seed: int
) -> dict[tuple[str, int], float]:
    """Return the duration of a stream over empty queues, once the workers have started."""
    starts = {}
    for way in PLAIN_READS:
        its_places = places[way]
        read = partial(streams.read, way)
        timed(its_places[:1], fill(its_places[:1], 64, ITEMS_AT_ONCE, seed), read)
        for servers in sizes.servers:
            starts[way, servers] = timed(its_places[:servers], Seen(0, 0), read).seconds
    return starts


def _pair(
    streams: Streams,
    places: Sequence[Place],
    case: Case,
    where: str,
    starts: Mapping[tuple[str, int], float],
    sizes: Sizes,
    seed: int,
) -> Pair:
    items = sizes.items[case.item_bytes]
    if case.way == SINK:
        put = fill(places, case.item_bytes, items, seed)
        forget(places)
        plain = timed_write(places, put, partial(fill, places, case.item_bytes, items, seed))
        return Pair(
            case, where, timed_write(places, put, partial(streams.write, places, case.item_bytes, items, seed)), plain
        )
    plain = timed(places, fill(places, case.item_bytes, items, seed), PLAIN_READS[case.way])
    put = fill(places, case.item_bytes, items, seed)
    start_s = starts.get((case.way, case.servers), 0.0)
    return Pair(case, where, timed(places, put, partial(streams.read, case.way), start_s), plain)


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Measure all cases, and add the results."""
    require_room(4 * max(item_bytes * items for item_bytes, items in sizes.items.items()) + 100 * MB)
    with scratch_folder() as folder, serving(folder, max(sizes.servers)) as places:
        found = in_fresh_process(pairs, places, folder / "checkpoints", sizes, seed)
    for figures in rows_of(found):
        results.add(**figures)


def rows_of(found: Sequence[Pair]) -> Iterator[dict[str, Figure]]:
    """Yield the rows of all runs. The client's row comes before Spark's."""
    by_case: defaultdict[Case, dict[str, list[Pair]]] = defaultdict(lambda: defaultdict(list))
    for pair in found:
        by_case[pair.case][pair.where].append(pair)
    for case, by_master in by_case.items():
        yield _row(case, PLAIN, [pair.plain for its_pairs in by_master.values() for pair in its_pairs])
        for where, its_pairs in by_master.items():
            turns = [pair.spark for pair in its_pairs]
            row = _row(case, where, turns)
            row["to_plain"] = statistics.median(pair.spark.per_s / pair.plain.per_s for pair in its_pairs)
            readings = [(pair.spark.reading_per_s, pair.plain.per_s) for pair in its_pairs]
            ratios = [rate / plain for rate, plain in readings if rate is not None]
            if ratios:
                row["reading_to_plain"] = statistics.median(ratios)
            row["start_s"] = statistics.median(turn.start_s for turn in turns)
            row["batches"] = turns[0].batches
            if where != MASTERS[0] and MASTERS[0] in by_master:
                ones = [pair.spark for pair in by_master[MASTERS[0]]]
                row["to_one_core"] = statistics.median(
                    turn.per_s / one.per_s for turn, one in zip(turns, ones, strict=True)
                )
            yield row


def _row(case: Case, where: str, turns: Sequence[Timed]) -> dict[str, Figure]:
    rate = spread([turn.per_s for turn in turns])
    return {
        "way": case.way,
        "servers": case.servers,
        "item_bytes": case.item_bytes,
        "where": where,
        "items_per_s": rate.median,
        "items_per_s_least": rate.least,
        "items_per_s_most": rate.most,
        "mb_per_s": rate.median * case.item_bytes / MB,
        "server_us": statistics.median(turn.server_cpu_s / turn.items * 1_000_000 for turn in turns),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=FULL.repeats, help="runs of each case (default %(default)s)")
    parser.add_argument(
        "--items", type=int, nargs="+", choices=FULL.items, default=[*FULL.items], help="item sizes in bytes"
    )
    options = parser.parse_args(arguments)
    full = FULL._replace(repeats=options.repeats, items={size: FULL.items[size] for size in options.items})
    sizes = SHORT if options.short else full
    with Results("streams", COLUMNS, as_json=options.json) as results:
        measure(results, sizes, options.seed)


if __name__ == "__main__":
    main()
