"""A storage over a database: the heads of its queues in memory, and write-behind.

An author writes an `IDatabase`, four methods that each return a Deferred, and a factory that returns
``WindowedStorage(database, clock, memory)``. docs/storage_plugins.md goes through an example.

What was recorded is safe when the database has applied the batch that it is part of, whatever `syncJournal` says. While
the database is away nothing is lost and nothing is known: commits wait until it is back, heads that are in memory are
served on (and their replies wait), puts are refused. Capabilities: `CAPABILITIES`.
"""

from kestrel.storage.windowed.storage import CAPABILITIES, UNUSED_SETTINGS, WindowedStorage

__all__ = ["CAPABILITIES", "UNUSED_SETTINGS", "WindowedStorage"]
