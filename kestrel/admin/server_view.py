"""The view that the admin port has of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from attrs import Factory, field, frozen

from kestrel.config.model import Config
from kestrel.histogram import Histogram
from kestrel.net.queue_server import QueueServer
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.stat_definitions import ServerSnapshot
from kestrel.queues.transfer import Transfers
from kestrel.session.access import is_administrator
from kestrel.session.session_context import RefusalLog, ServerControl


@frozen
class ServerView:
    """A server and the functions that the admin port needs to describe and control it."""

    core: QueueServer
    control: ServerControl
    storage: str
    """Description of where the queues are stored."""
    seconds: Callable[[], float]
    """The monotonic clock."""
    is_ready: Callable[[], bool]
    """Returns True from when the queues are loaded until the server stops."""
    server_sets: Callable[[], Mapping[str, bool]] = dict
    """Returns, for each server set, whether the server is known to be a member."""
    transfers: Transfers = field(
        default=Factory(
            lambda self: Transfers(
                self.core.manager, self.core.scheduler, lambda: bool(self.control.status.takes_writes)
            ),
            takes_self=True,
        ),
        init=False,
    )
    started_s: float = Factory(lambda self: self.seconds(), takes_self=True)

    @property
    def manager(self) -> QueueManager:
        return self.core.manager

    @property
    def refusal_log(self) -> RefusalLog:
        return self.core.session_context.refusal_log

    @property
    def config(self) -> Config:
        return self.core.config

    def snapshot(self) -> ServerSnapshot:
        """Return a snapshot of the server's statistics. The caller must run its `gather` in steps."""
        return ServerSnapshot(self.manager, self.control.version, self.control.uptime_s())

    def may_administer(self, identity: bytes | None, *, is_trusted: bool, has_token: bool) -> bool:
        """Return True if the client with this certificate subject, or without one, is an administrator.

        If tokens are configured but no list of administrators, only clients with a token or a trusted endpoint are.
        """
        if is_trusted or has_token:
            return True
        settings = self.core.session_settings
        if settings.administrators is None and self.config.admin.token_digests:
            return False
        return is_administrator(settings, identity, is_trusted=False)

    def is_token(self, token: bytes) -> bool:
        """Return True if `token` is the token of an administrator."""
        digest = sha256(token).hexdigest()
        return bool(token) and any(compare_digest(digest, each) for each in self.config.admin.token_digests)


QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p9999": 0.9999}

_SHARES: Final = tuple(QUANTILES.values())


def summarize(histogram: Histogram) -> dict[str, int]:
    """Return count, sum, average, minimum, maximum and quantiles of a histogram; only the count if it is empty."""
    if not histogram.count:
        return {"count": 0}
    return {
        "average": histogram.sum // histogram.count,
        "count": histogram.count,
        "maximum": histogram.maximum,
        "minimum": histogram.minimum,
        **dict(zip(QUANTILES, histogram.quantiles(_SHARES), strict=True)),
        "sum": histogram.sum,
    }


def summarize_all(histograms: QueueHistograms) -> dict[str, dict[str, int]]:
    """Return the summary of each histogram, by Kestrel's names."""
    return {name: summarize(histogram) for name, histogram in histograms.all().items()}


def add_histograms(manager: QueueManager, total: QueueHistograms) -> Iterator[None]:
    """Add the histograms of all queues, existing and deleted, to `total`. Yield after each queue."""
    # Both are read at the same moment, so that a queue that is deleted later is counted once.
    of_queues = [queue.histograms for queue in manager.queues_including_masked()]
    total.merge(manager.deleted_queue_histograms)
    for histograms in of_queues:
        total.merge(histograms)
        yield None
