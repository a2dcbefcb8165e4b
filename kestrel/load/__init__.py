"""`kestrel-load`: load tests for a server, with reports on throughput, latency and lost items."""
