"""Structured Streaming sources and sinks: live queues, and archives that receive files."""
