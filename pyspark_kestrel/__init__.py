"""Registration of the format ``kestrel``: Spark imports every installed package named ``pyspark_*``."""

from kestrel.spark.source import KestrelSource as DefaultSource

__all__ = ["DefaultSource"]
