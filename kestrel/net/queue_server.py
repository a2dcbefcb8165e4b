"""The server without its process: queues, status and clients over a storage, set up by a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList, succeed

from kestrel.config.dump import alias_config, queue_config, server_config
from kestrel.config.model import Config, QueueSettings
from kestrel.config.resolved import ResolvedConfig
from kestrel.errors import BadQueueName
from kestrel.names import check_queue_name
from kestrel.net.connection import Connection, ConnectionFactory
from kestrel.protocols.codec import Codec
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.protocols.text import TextCodec
from kestrel.protocols.thrift import ThriftCodec
from kestrel.queues.expiry_sweeper import ExpirySweeper
from kestrel.queues.manager import QueueManager
from kestrel.queues.status import ServerStatus, StatusLevel
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.session.session_context import ServerControl, SessionContext
from kestrel.storage.barrier import Barrier


class QueueServer:
    """A set of queues and their client connections, whose parts `kestrel.server.assembly` makes.

    Ports and signals are handled elsewhere.
    """

    def __init__(
        self,
        config: Config,
        barrier: Barrier,
        scheduler: TickScheduler,
        manager: QueueManager,
        status: ServerStatus,
        expiry_sweeper: ExpirySweeper,
        session_context: SessionContext,
    ) -> None:
        self.config = config
        self._configured_names = sorted(config.queues)
        self.barrier = barrier
        self.scheduler = scheduler
        self.manager = manager
        self.status = status
        self.expiry_sweeper = expiry_sweeper
        self.session_context = session_context
        barrier.uncommitted.set_limit(config.max_uncommitted_bytes)
        self._compacts_at_close = False
        self._is_stopping = False
        self._factories: list[ConnectionFactory] = []
        self._protocols: list[str] = []

    def connections(
        self,
        protocol: str,
        make_codec: Callable[[Config], Codec],
        control: ServerControl,
        *,
        is_trusted: bool = False,
    ) -> ConnectionFactory:
        """Return a factory for the connections of one protocol (`CODEC_FACTORIES`).

        `make_codec` creates the codec of each connection, with the limits of the configuration at that time. Trusted
        clients are administrators.
        """
        factory = ConnectionFactory(
            self.session_context, lambda: make_codec(self.config), control, is_trusted=is_trusted
        )
        self._factories.append(factory)
        self._protocols.append(protocol)
        return factory

    def connections_by_protocol(self) -> dict[str, int]:
        """Return the number of connected clients by protocol."""
        counts = dict.fromkeys(self._protocols, 0)
        for protocol, factory in zip(self._protocols, self._factories, strict=True):
            counts[protocol] += factory.count
        return counts

    def start(self) -> Deferred[None]:
        """Load the queues. Clients that connect are served after `serve`.

        Raises `StorageError` at once if the storage cannot be used.
        """
        self.status.restore()
        return self.manager.start()

    def serve(self) -> None:
        """Begin to serve clients, because the queues are loaded."""
        self.expiry_sweeper.every(self.config.expiration_timer_frequency_ms)
        self.scheduler.open()

    def use(self, resolved: ResolvedConfig) -> Deferred[None]:
        """Apply another configuration: queues, aliases, limits of connections, and the expiry timer.

        Fires when all queues use it. Does nothing if the server is stopping.
        """
        if self._is_stopping:
            return succeed(None)
        config = self.config = resolved.config
        self._configured_names = sorted(config.queues)
        self.apply_session_settings(config)
        self.barrier.uncommitted.set_limit(config.max_uncommitted_bytes)
        self.manager.memory_limit.most_bytes = config.max_total_memory_bytes
        self.expiry_sweeper.every(config.expiration_timer_frequency_ms)
        return self.manager.use(resolved)

    @property
    def session_settings(self) -> Config:
        """The configuration whose limits apply to connections."""
        return self.session_context.settings

    def apply_session_settings(self, settings: Config) -> None:
        """Apply the limits of a configuration to all connections, including existing ones."""
        self.session_context.use(settings)
        for factory in self._factories:
            factory.settings_changed()

    def server_settings(self) -> list[tuple[str, str]]:
        """Return the displayed settings of the server itself."""
        return server_config(self.config)

    def iter_config(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, list[tuple[str, str]]]]:
        """Yield name and displayed settings of these queues and aliases, or of all that exist or are configured.

        A missing queue has settings too. An invalid name has none.
        """
        chosen = dict.fromkeys(names) or _merge_sorted(self.manager.names_in_order(), self._configured_names)
        settings: QueueSettings | None = None
        shown: list[tuple[str, str]] = []
        for name in chosen:
            alias = self.config.aliases.get(name)
            if alias is not None:
                yield name, alias_config(alias)
                continue
            try:
                check_queue_name(name)
            except BadQueueName:
                yield name, []
                continue
            queue = self.manager.known(name)
            of_queue = self.manager.settings_for(name) if queue is None else queue.settings
            if of_queue is not settings:  # most queues share their settings
                settings, shown = of_queue, queue_config(of_queue)
            yield name, shown

    def all_connections(self) -> list[Connection]:
        """Return the connections of all factories."""
        return [connection for _, connection in self.iter_connections()]

    def iter_connections(self) -> Iterator[tuple[str, Connection]]:
        """Yield each connection with its protocol: the factories in order, and the oldest connection of each first."""
        for protocol, factory in zip(self._protocols, self._factories, strict=True):
            for connection in factory.all():
                yield protocol, connection

    def hang_up(self) -> Deferred[Any]:
        """Set the status to Down, answer the waiters, and close all connections after their replies.

        Fires when all are closed.
        """
        self._is_stopping = True
        self._compacts_at_close = self.status.in_force in (StatusLevel.READ_ONLY, StatusLevel.QUIESCENT)
        self.expiry_sweeper.stop()
        self.status.stop()
        self.session_context.stop()
        self.manager.wake_all()
        return DeferredList([factory.hang_up() for factory in self._factories])

    def abort(self) -> None:
        """Abort all connections that are still open."""
        for factory in self._factories:
            factory.abort()

    def close(self) -> Deferred[None]:
        """Commit the last changes and close the storage."""
        return self.manager.close(self._compacts_at_close)


def _merge_sorted(*sorted_names: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each name of several sorted sequences once, in order."""
    return (name for name, _ in groupby(merge(*sorted_names)))


def _memcache(config: Config) -> Codec:
    return MemcacheCodec(config.max_line_size_bytes, config.max_request_item_size_bytes, config.echo_requested_key)


def _text(config: Config) -> Codec:
    return TextCodec(
        config.max_line_size_bytes,
        config.max_request_item_size_bytes,
        config.max_text_put_items,
        config.max_request_size_bytes,
    )


def _thrift(config: Config) -> Codec:
    return ThriftCodec(config.max_request_size_bytes, config.max_request_item_size_bytes, config.max_thrift_list_size)


CODEC_FACTORIES: Final[Mapping[str, Callable[[Config], Codec]]] = {
    "memcache": _memcache,
    "text": _text,
    "thrift": _thrift,
}
"""The factories by protocol, in the order in which ports are opened."""
