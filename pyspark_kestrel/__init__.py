"""Makes ``spark.read.format("kestrel")`` known to Spark, which looks into every installed package of such a name."""

from kestrel.spark.source import KestrelSource as DefaultSource

__all__ = ["DefaultSource"]
