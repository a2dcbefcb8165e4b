"""The steps of `make spark-environments` in the test's own session. test_cluster.py submits a program to a cluster."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from kestrel.spark.report.views import drop_views
from tests.spark.environments.environments import EXPECTED, write_queues
from tests.spark.environments.program import results


def test_program_has_the_expected_results(spark: SparkSession, tmp_path: Path) -> None:
    write_queues(tmp_path)
    session = spark.newSession()
    assert dict(results(session, tmp_path)) == EXPECTED
    drop_views(session)
