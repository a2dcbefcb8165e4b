"""A storage over a database: it keeps the heads of queues in memory, and writes changes in the background.

An author implements an `IDatabase`, with four methods that each return a Deferred, and a factory that returns
``WindowedStorage(database, clock, memory)``. docs/storage_plugins.md shows an example. The factory's capabilities are
`CAPABILITIES`.

A change is safe when the database has applied its batch, whatever `syncJournal` says. While the database is away, no
item is lost. Commits wait until it is back, and puts are refused. Heads in memory are still served, but their replies
wait.
"""

from kestrel.storage.windowed.storage import CAPABILITIES, UNUSED_SETTINGS, WindowedStorage

__all__ = ["CAPABILITIES", "UNUSED_SETTINGS", "WindowedStorage"]
