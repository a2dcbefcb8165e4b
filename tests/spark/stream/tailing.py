"""A stream of an archive without Spark: planned and read as by Spark, with a checkpoint that the test has."""

from __future__ import annotations

import json
from pathlib import Path

from kestrel.spark.stream.archive import ArchiveReader
from tests.scroll.handwritten import WRITER, put
from tests.spark.stream.micro_batches import Offset, Row, rows_between
from tests.spark.tables import source


class Stream:
    """A query over these paths. `offsets` is its checkpoint: the batches that were planned and may be read again."""

    def __init__(self, *paths: Path | str, index: Path | None = None, **options: str) -> None:
        self._paths = paths
        self._options = {"index": str(index or Path(paths[0]).parent / "audit.index"), **options}
        self.offsets: list[Offset] = []
        self.reader = self._started()

    def _started(self) -> ArchiveReader:
        made = source(*self._paths, **self._options)
        reader = made.streamReader(made.schema())
        assert isinstance(reader, ArchiveReader)
        return reader

    def restart(self, **options: str) -> None:
        """Restart the process with the same checkpoint."""
        self._options.update(options)
        self.reader = self._started()

    def plan(self) -> bool:
        """Plan a batch and record its end, as Spark does before it reads. Return False if the batch is empty."""
        if not self.offsets:
            self.offsets.append(_stored(self.reader.initialOffset()))
        start = self.offsets[-1]
        end = _stored(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if end == start:
            return False
        self.offsets.append(end)
        return True

    def batch(self, number: int = -1) -> list[Row]:
        """Return the rows of a planned batch, by default of the last one."""
        return rows_between(self.reader, self.offsets[number - 1], self.offsets[number])

    def poll(self) -> list[Row]:
        """Return the rows of the next batch."""
        return self.batch() if self.plan() else []

    def drain(self) -> list[list[Row]]:
        """Return the rows of all batches that are available."""
        batches = []
        while self.plan():
            batches.append(self.batch())
        return batches


def came(archive: Path, name: str, *items: bytes) -> Path:
    """Add a file to the archive, as a server does."""
    moved = archive.parent / name
    moved.write_bytes(WRITER + b"".join(put(item_id, item) for item_id, item in enumerate(items, 1)))
    return moved.rename(archive / f"archive~{name}")


def _stored(offset: Offset) -> Offset:
    stored: Offset = json.loads(json.dumps(offset))
    return stored


def data(rows: list[Row]) -> list[bytes]:
    """Return the items among the rows, in order."""
    return [row["data"] for row in rows if row["op"] == "PUT"]
