"""Queues and the manager that finds them by name."""
