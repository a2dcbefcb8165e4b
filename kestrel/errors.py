"""The errors of the project: invalid requests, refusals by the server, and failures of the server.

The text of each error is one sentence for readers of the reply or the log. Each protocol has a table that maps the
classes to its own words.
"""

from __future__ import annotations


class KestrelError(Exception):
    """Base class of all errors that this project raises on purpose."""


# Invalid requests.


class ClientError(KestrelError):
    """An invalid request: it will fail again if repeated."""


class BadQueueName(ClientError):
    """An invalid queue name."""


class TooManyOpenReads(ClientError):
    """An open read beyond the connection's limit for the queue (maxOpenTransactions)."""


class OpenReadExists(ClientError):
    """A plain get of a queue on which this connection has an open read."""


class UnknownStatus(ClientError):
    """An unknown name of a status."""


class StatusForbidden(UnknownStatus):
    """A status that clients cannot set."""


class RequestTooSlow(ClientError):
    """A request that takes too long, or too much memory for its time."""


class TooFewOpenReads(ClientError):
    """A confirm of more reads than are open. Nothing was confirmed."""


class RangeRefused(ClientError):
    """A refused read of items by their ids: they have none, another reader has them, or they were released."""


# Refusals, for now.


class Unavailable(KestrelError):
    """A command that the server refuses at present (status, connection limit, client list)."""


class NotAuthorized(Unavailable):
    """A command that this client is not allowed to send."""


# Failures of the server.


class StorageError(KestrelError):
    """A failure of the storage."""


class TooManyQueues(StorageError):
    """A queue that is not created because there are too many."""


class StorageRefused(StorageError):
    """A refused put (disk full, database away). Other commands still work."""


class ItemTooLarge(StorageError):
    """An item too large for the storage."""


class QueueFailed(StorageError):
    """A queue that failed because its disk failed. It can be reopened at its last committed state."""


class BadStorageArgument(StorageError):
    """An invalid storage description (``name:argument?option=value``)."""


class BrokenStoragePlugin(BadStorageArgument):
    """A storage plugin that cannot be used because of an error of its own."""


class StorageInUse(StorageError):
    """A storage that another server owns."""


class FolderInUse(StorageInUse):
    """A queue folder that another server owns."""


class OwnershipLost(StorageError):
    """A storage that another server may own by now. Nothing more is written."""


class DatabaseAway(StorageError):
    """A database that did not answer. Whether it carried out the last request is unknown."""
