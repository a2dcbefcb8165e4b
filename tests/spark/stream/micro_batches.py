"""What Spark does with a stream, as far as a source sees it: two logs, batches, and what happens after a crash."""

from __future__ import annotations

import json

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from kestrel.spark.stream.queue_reader import Offset
from tests.spark.tables import Row, read_tasks


class Crash(Exception):
    """The driver dies there."""


class Checkpoint:
    """What outlives a driver: offsets, which batches are done, and the rows of each batch that a sink has."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.done = 0
        self.sink: dict[int, list[Row]] = {}

    def rows(self) -> list[Row]:
        """Everything in the sink."""
        return [row for number in sorted(self.sink) for row in self.sink[number]]

    def data(self) -> list[bytes]:
        """The items of it."""
        return [row["data"] for row in self.rows()]


class Query:
    """A running query. `crash_at` is a place of a batch: planned, read, written."""

    def __init__(self, reader: DataSourceStreamReader, checkpoint: Checkpoint | None = None) -> None:
        self.reader = reader
        self.checkpoint = checkpoint or Checkpoint()
        self._limit = reader.getDefaultReadLimit()
        self._began = False

    def trigger(self, crash_at: str = "") -> bool:
        """One batch, if there is anything; whether there was."""
        log = self.checkpoint
        if not self._began:
            self._began = True
            if log.done < len(log.offsets):  # it was planned by a driver that died
                self._run(crash_at)
                return True
        start = self._end_of(len(log.offsets) - 1)
        end = json.dumps(self.reader.latestOffset(start, self._limit))
        if end == json.dumps(start):
            return False
        log.offsets.append(end)
        if crash_at == "planned":
            raise Crash
        if len(log.offsets) > 1:
            self.reader.commit(self._end_of(len(log.offsets) - 2))
        self._run(crash_at)
        return True

    def _end_of(self, number: int) -> Offset:
        """Where a batch ends, as the log says; before the first one Spark asks, also after a restart."""
        offset: Offset = json.loads(
            self.checkpoint.offsets[number] if number >= 0 else json.dumps(self.reader.initialOffset())
        )
        return offset

    def _run(self, crash_at: str) -> None:
        log = self.checkpoint
        number = len(log.offsets) - 1
        rows = rows_between(self.reader, self._end_of(number - 1), self._end_of(number))
        if crash_at == "read":
            raise Crash
        log.sink[number] = rows
        if crash_at == "written":
            raise Crash
        log.done = number + 1

    def drain(self) -> None:
        """Batches until there is nothing more."""
        while self.trigger():
            pass

    def run_available_now(self) -> None:
        """Until there is nothing more."""
        available_now(self.reader)
        for _ in range(1000):
            if not self.trigger():
                return
        raise AssertionError("it never ends")


def available_now(reader: DataSourceStreamReader, checkpoint: Checkpoint | None = None) -> Query:
    """A query with the trigger of that name, whose reader knows now what it will read."""
    assert isinstance(reader, SupportsTriggerAvailableNow)
    reader.prepareForTriggerAvailableNow()
    return Query(reader, checkpoint)


def rows_between(reader: DataSourceStreamReader, start: Offset, end: Offset) -> list[Row]:
    """The rows of a batch, which tasks read that have the reader from somewhere else."""
    return list(read_tasks(reader, reader.partitions(start, end)))
