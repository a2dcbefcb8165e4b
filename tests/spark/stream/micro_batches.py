"""What a source sees of Spark: two logs, batches, and recovery after a crash."""

from __future__ import annotations

import json

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from kestrel.spark.stream.queue_reader import Offset
from tests.spark.tables import Row, read_tasks


class Crash(Exception):
    """The driver dies at that place."""


class Checkpoint:
    """The state that survives a driver: offsets, finished batches, and the rows of each batch in a sink."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.done = 0
        self.sink: dict[int, list[Row]] = {}

    def rows(self) -> list[Row]:
        """Return all rows of the sink."""
        return [row for number in sorted(self.sink) for row in self.sink[number]]

    def data(self) -> list[bytes]:
        """Return the items of the sink."""
        return [row["data"] for row in self.rows()]


class Query:
    """A running query. `crash_at` is a place in a batch: planned, read, written."""

    def __init__(self, reader: DataSourceStreamReader, checkpoint: Checkpoint | None = None) -> None:
        self.reader = reader
        self.checkpoint = checkpoint or Checkpoint()
        self._limit = reader.getDefaultReadLimit()
        self._began = False

    def trigger(self, crash_at: str = "") -> bool:
        """Run one batch. Return False if there is nothing to read."""
        log = self.checkpoint
        if not self._began:
            self._began = True
            if log.done < len(log.offsets):  # a driver that died has planned it
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
        """Return the end of the last batch in the log. Before the first one Spark asks the source, also after a
        restart.
        """
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
        """Run batches until nothing is left."""
        while self.trigger():
            pass

    def run_available_now(self) -> None:
        """Run batches until nothing is left."""
        available_now(self.reader)
        for _ in range(1000):
            if not self.trigger():
                return
        raise AssertionError("it never ends")


def available_now(reader: DataSourceStreamReader, checkpoint: Checkpoint | None = None) -> Query:
    """Return a query with the trigger of that name. Its reader determines now what it will read."""
    assert isinstance(reader, SupportsTriggerAvailableNow)
    reader.prepareForTriggerAvailableNow()
    return Query(reader, checkpoint)


def rows_between(reader: DataSourceStreamReader, start: Offset, end: Offset) -> list[Row]:
    """Return the rows of a batch, read by tasks whose reader was pickled."""
    return list(read_tasks(reader, reader.partitions(start, end)))
