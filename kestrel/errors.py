"""What can go wrong, as one small tree: the client spoke wrongly, the server will not, the server cannot.

The text of each error is one sentence for the person who reads the reply or the log; each protocol has a
table that maps the classes to its own words.
"""

from __future__ import annotations


class KestrelError(Exception):
    """Everything this project raises on purpose."""


# The client spoke wrongly.


class ClientError(KestrelError):
    """The request makes no sense; the same request will fail again."""


class BadQueueName(ClientError):
    """No queue can have that name."""


class TooManyOpenReads(ClientError):
    """The connection already holds as many open reads of that queue as maxOpenTransactions allows."""


class OpenReadExists(ClientError):
    """A plain get of a queue on which this connection holds an open read."""


class UnknownStatus(ClientError):
    """The server has no status of that name."""


class StatusForbidden(UnknownStatus):
    """A status that the server takes by itself alone."""


class RequestTooSlow(ClientError):
    """What the client began has not ended in time, or is in the way of others."""


class TooFewOpenReads(ClientError):
    """A confirm of more reads than are open; nothing was confirmed."""


class RangeRefused(ClientError):
    """Those items cannot be read by their ids: the queue has none, another reader has it, or they were released."""


# The server will not, now.


class Unavailable(KestrelError):
    """The server refuses this command at present (status, connection limit, allow-list)."""


class NotAuthorized(Unavailable):
    """The client is not in the list of those who may do that."""


# The server cannot.


class StorageError(KestrelError):
    """The storage could not do what was asked."""


class TooManyQueues(StorageError):
    """A queue that does not exist does not come into being."""


class StorageRefused(StorageError):
    """No put is taken now (disk full, database away); everything else goes on."""


class ItemTooLarge(StorageError):
    """The storage cannot hold an item of that size."""


class QueueFailed(StorageError):
    """This queue object is dead: its disk failed. The queue can be opened anew at its last safe state."""


class BadStorageArgument(StorageError):
    """A storage description (``name:argument?option=value``) that cannot be used."""


class BrokenStoragePlugin(BadStorageArgument):
    """The storage of another distribution that a description names cannot be used, for a fault of its own."""


class StorageInUse(StorageError):
    """Another server owns what the storage is to keep its queues in."""


class FolderInUse(StorageInUse):
    """Another server owns the queue folder."""


class OwnershipLost(StorageError):
    """Another server may own by now what the storage keeps its queues in: nothing is written any more."""


class DatabaseAway(StorageError):
    """The database did not answer: whether it has done what it was asked is not known."""
