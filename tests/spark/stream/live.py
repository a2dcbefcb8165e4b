"""Servers as they are, and Spark's streams out of them."""

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
    """Servers that keep their ports when they are started again."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._processes = stack.enter_context(Processes(folder))
        self._ports = [stack.enter_context(own_port()) for _ in range(2)]
        self._running: list[Server] = []

    @property
    def addresses(self) -> list[str]:
        """Where they speak thrift."""
        return [f"127.0.0.1:{port}" for port in self._ports]

    @property
    def servers(self) -> str:
        """As the option says them."""
        return ",".join(self.addresses)

    def start(self, storage: str) -> None:
        """Have all of them serve what is in their folders."""
        self._running = [
            self._processes.serve(
                CONFIG,
                *("--thrift", f"tcp:{port}:interface=127.0.0.1"),
                *("--storage", f"{storage}:{self._folder}/{storage}-{port}"),
            )
            for port in self._ports
        ]

    def stop(self) -> None:
        """An orderly stop of all."""
        for server in self._running:
            server.stop()

    def put(self, *items: bytes, queue: str = "work") -> None:
        """Put them to the servers in turn."""
        for number, server in enumerate(self._running):
            with BlockingClient(f"127.0.0.1:{server.port}") as client:
                assert client.put_many(queue, items[number :: len(self._running)])

    def items(self) -> int:
        """How many wait, in all of them."""
        return sum(self.items_of_each())

    def items_of_each(self) -> list[int]:
        """How many wait, in the order of the servers."""
        return self._figures("queue_work_items")

    def open_reads(self) -> int:
        """How many are open."""
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
    """Everything that is there, into files, from where the checkpoint is."""
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
    """Where it speaks thrift."""
    return f"127.0.0.1:{server.port_of('thrift')}"


def taken(server: Server, queue: str = "work") -> list[bytes]:
    """All that is in the queue."""
    with BlockingClient(address_of(server), "thrift", timeout_s=PATIENCE_S) as client:
        return list(iter(lambda: client.get(queue), None))


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + count)]
