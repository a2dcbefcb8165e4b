"""Benchmarks of kestrel: throughput, memory and latency. docs/performance.md describes them and their results."""
