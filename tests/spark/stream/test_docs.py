"""The example of docs/streams.md prints what the page shows, and its tables have all columns and options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kestrel.client.blocking import BlockingClient
from kestrel.spark.columns import ITEMS
from kestrel.spark.stream.options import KEYS, OPTIONS
from kestrel.spark.table.options import OF_STREAMS
from tests.server.running import Processes
from tests.spark.stream.live import address_of, numbered
from tests.spark.walks import section, walk

PAGE = "streams.md"
RE_BLOCK: Final = re.MULTILINE | re.DOTALL


def test_example_prints_its_output(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Processes(tmp_path) as processes:
        server = processes.serve("", "--storage", "scroll:queues")
        walk(PAGE, {"localhost:2229": f"127.0.0.1:{server.port_of('thrift')}", '"var/': f'"{tmp_path}/'}, capsys)


def test_example_of_windows_counts_all_items(spark: SparkSession, tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        address = address_of(processes.serve("", "--storage", "scroll:queues"))
        with BlockingClient(address, "thrift") as client:
            client.put_many("orders", numbered(0, 30))
        items = spark.readStream.format("kestrel").option("servers", address).option("queue", "orders").load()
        example = re.search(r"^```python\n(.*?)^```$", section(PAGE, "Windows and watermarks", "###"), RE_BLOCK)
        assert example is not None
        names: dict[str, Any] = {"F": F, "items": items}
        exec(compile(example[1], PAGE, "exec"), names)
        writing = names["counts"].writeStream.format("memory").queryName("counts").outputMode("complete")
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
    assert sum(row.number for row in spark.table("counts").collect()) == 30


def test_every_column_is_documented() -> None:
    assert set(ITEMS.names) <= named_in("Out of queues")


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Out of queues", OPTIONS),
        ("Into queues", ("servers", "queue", "timeout", "patience", KEYS)),
        ("Out of archives", OF_STREAMS),
    ],
)
def test_every_option_is_documented(heading: str, names: tuple[str, ...]) -> None:
    assert set(names) <= named_in(heading)


def named_in(heading: str) -> set[str]:
    """Return the texts in backquotes."""
    return set(re.findall(r"`(\w+)`", section(PAGE, heading)))
