"""Batch tables of journals and scrolls: file selection, division into tasks, and conversion to columns."""
