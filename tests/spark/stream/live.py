"""Real servers and Spark streams of their queues."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from kestrel.client.blocking import BlockingClient
from tests.server.running import PATIENCE_S, Processes, Server, own_port

CONFIG = """
maxOpenTransactions = 1000

[[queues]]
name = "work"
"""


class Fleet:
    """Servers that keep their ports over restarts."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._processes = stack.enter_context(Processes(folder))
        self._ports = [stack.enter_context(own_port()) for _ in range(2)]
        self._running: list[Server] = []

    @property
    def addresses(self) -> list[str]:
        """The thrift addresses."""
        return [f"127.0.0.1:{port}" for port in self._ports]

    @property
    def servers(self) -> str:
        """The addresses as the option names them."""
        return ",".join(self.addresses)

    def start(self, storage: str) -> None:
        """Start all servers over their folders."""
        self._running = [
            self._processes.serve(
                CONFIG,
                *("--thrift", f"tcp:{port}:interface=127.0.0.1"),
                *("--storage", f"{storage}:{self._folder}/{storage}-{port}"),
            )
            for port in self._ports
        ]

    def stop(self) -> None:
        """Stop all servers in an orderly way."""
        for server in self._running:
            server.stop()

    def put(self, *items: bytes, queue: str = "work") -> None:
        """Put items to the servers in turn."""
        for number, server in enumerate(self._running):
            with BlockingClient(f"127.0.0.1:{server.port}") as client:
                assert client.put_many(queue, items[number :: len(self._running)])

    def items(self) -> int:
        """Return the number of waiting items in all servers."""
        return sum(self.items_of_each())

    def items_of_each(self) -> list[int]:
        """Return the number of waiting items of each server, in order."""
        return self._figures("queue_work_items")

    def open_reads(self) -> int:
        """Return the number of open reads."""
        return sum(self._figures("queue_work_open_transactions"))

    def _figures(self, name: str) -> list[int]:
        figures = []
        for server in self._running:
            with server.connect() as client:
                figures.append(int(client.stats()[name]))
        return figures


def stream(spark: SparkSession, fleet: Fleet, **options: str) -> DataFrame:
    return (
        spark.readStream.format("kestrel")
        .options(
            **{"servers": fleet.servers, "patience": "20s", **options}
            | ({} if "subscribePattern" in options else {"subscribe": "work"})
        )
        .load()
    )


def run(items: DataFrame, folder: Path) -> None:
    """Write all available items to files, from the checkpoint on."""
    query = (
        items.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def written(spark: SparkSession, folder: Path) -> list[bytes]:
    return sorted(bytes(row["data"]) for row in spark.read.parquet(str(folder / "out")).select("data").collect())


def address_of(server: Server) -> str:
    """Return the thrift address."""
    return f"127.0.0.1:{server.port_of('thrift')}"


def taken(server: Server, queue: str = "work") -> list[bytes]:
    """Return all items of the queue."""
    with BlockingClient(address_of(server), "thrift", timeout_s=PATIENCE_S) as client:
        return list(iter(lambda: client.get(queue), None))


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + count)]
