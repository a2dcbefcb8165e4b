"""Comparison of kestrel with other servers: the same work for each, from a load generator in C."""
