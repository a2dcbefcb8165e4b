"""The assembly of a server: `assemble_server` makes all of its parts and connects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from attrs import frozen
from twisted.internet.interfaces import IProtocolFactory, IReactorTime

from kestrel.address import Address
from kestrel.admin.server_view import ServerView
from kestrel.admin.site import AdminPort
from kestrel.config.model import Config, ZooKeeperSettings
from kestrel.config.resolved import ResolvedConfig
from kestrel.net.connection import ConnectionFactory
from kestrel.net.hub import Hub
from kestrel.net.queue_server import CODEC_FACTORIES, QueueServer
from kestrel.protocols.codec import Codec
from kestrel.queues.expiry_sweeper import ExpirySweeper
from kestrel.queues.manager import QueueManager
from kestrel.queues.status import ServerStatus, StatusFile, StatusLevel
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.server.dead_peers import DeadPeerChecker
from kestrel.server.endpoints import ADMIN
from kestrel.session.session_context import ServerControl, SessionContext
from kestrel.storage.barrier import Barrier, Schedule
from kestrel.storage.interfaces import InThread, IStorage
from kestrel.storage.memory import MemoryStorage
from kestrel.storage.total_memory import MemoryLimit

if TYPE_CHECKING:  # it imports kazoo, which is an extra
    from kestrel.server.announcer import Announcer


@frozen(kw_only=True)
class Environment:
    """The parts of a server that a test replaces: clocks, threads, storage and sockets."""

    clock: IReactorTime
    """Runs the timers."""
    seconds: Callable[[], float]
    """Measures work, in seconds."""
    now_ms: Callable[[], int]
    """The wall clock, in milliseconds since the epoch."""
    schedule: Schedule
    """Calls a function soon on the reactor's thread."""
    in_thread: InThread
    make_storage: Callable[[MemoryLimit], IStorage]
    """Makes the storage of the queues, which reports its memory to the limit."""
    status_file: StatusFile
    codecs: Mapping[str, Callable[[Config], Codec]] = CODEC_FACTORIES
    """The factories of codecs by protocol."""
    has_hub: bool = False
    """Whether a hub serves the plain TCP connections."""


class Listener(NamedTuple):
    """An endpoint to listen on, and the factory of its connections."""

    protocol: str
    endpoint: str
    factory: IProtocolFactory
    is_trusted: bool


class AssembledServer(NamedTuple):
    """The parts of a server. None of them is started."""

    core: QueueServer
    storage: IStorage
    factories: Mapping[str, ConnectionFactory]
    """The factories of ordinary connections by protocol."""
    listeners: Sequence[Listener]
    hub: Hub | None
    admin: AdminPort
    dead_peers: DeadPeerChecker
    make_announcer: Callable[[Mapping[str, Sequence[Address]]], Announcer] | None
    """Makes the announcer from the addresses by protocol; None if the server joins no server sets."""


def assemble_server(
    resolved: ResolvedConfig,
    environment: Environment,
    control: ServerControl,
    *,
    storage_name: str = "memory:",
    endpoints: Mapping[str, Sequence[str]] | None = None,
    trusted: Mapping[str, Sequence[str]] | None = None,
    is_serving: Callable[[], bool] = lambda: True,
    server_sets: Callable[[], Mapping[str, bool]] = dict,
) -> AssembledServer:
    """Make the parts of a server.

    `control` executes commands about the server as a whole. `endpoints` and `trusted` are endpoint strings by protocol;
    clients of the latter are administrators. The admin port shows `storage_name`, `is_serving` and `server_sets`.
    """
    config, clock = resolved.config, environment.clock

    # Queues: commits, long work, storage, limits and expiry.
    memory_limit = MemoryLimit(config.max_total_memory_bytes)
    storage = environment.make_storage(memory_limit)
    barrier = Barrier(environment.schedule, clock.seconds)
    scheduler = TickScheduler(barrier, environment.schedule, environment.seconds)
    manager = QueueManager(
        storage, MemoryStorage(memory_limit), resolved, scheduler, clock, environment.now_ms, memory_limit
    )
    expiry_sweeper = ExpirySweeper(manager, scheduler, clock)
    status = ServerStatus(
        environment.status_file,
        StatusLevel(config.default_status),
        lambda: core.config.status_change_grace_period_ms,
        clock,
        environment.in_thread,
    )

    # Clients: sessions, connections of each protocol, and the check for clients that have vanished.
    session_context = SessionContext(manager, scheduler, clock, config)
    core = QueueServer(config, barrier, scheduler, manager, status, expiry_sweeper, session_context)
    factories = {
        protocol: core.connections(protocol, make_codec, control) for protocol, make_codec in environment.codecs.items()
    }
    dead_peers = DeadPeerChecker(clock, core.all_connections)
    hub = None
    if environment.has_hub:
        hub = Hub(environment.seconds, barrier.begin_tick, barrier.end_of_tick, environment.schedule)

    # Admin pages.
    admin = AdminPort(ServerView(core, control, storage_name, clock.seconds, is_serving, server_sets), clock)

    # Endpoints.
    listeners: list[Listener] = []
    for protocol, ordinary in (endpoints or {}).items():
        factory: IProtocolFactory = admin.site() if protocol == ADMIN else factories[protocol]
        listeners += [Listener(protocol, endpoint, factory, False) for endpoint in ordinary]
    for protocol, for_administrators in (trusted or {}).items():
        if protocol == ADMIN:
            factory = admin.site(is_trusted=True)
        else:
            factory = core.connections(protocol, environment.codecs[protocol], control, is_trusted=True)
        listeners += [Listener(protocol, endpoint, factory, True) for endpoint in for_administrators]

    # Server sets in ZooKeeper.
    make_announcer = None
    if config.zookeeper is not None:
        make_announcer = partial(_make_announcer, config.zookeeper, clock, environment.schedule)
    return AssembledServer(core, storage, factories, listeners, hub, admin, dead_peers, make_announcer)


def _make_announcer(
    settings: ZooKeeperSettings, clock: IReactorTime, schedule: Schedule, listening: Mapping[str, Sequence[Address]]
) -> Announcer:
    """Make the announcer of a server that listens at these addresses. Raises `CannotServe`."""
    from kestrel.server.zookeeper import addresses_of_host, advertised_member, make_announcer

    member = advertised_member(listening, settings.advertise_address, addresses_of_host())
    return make_announcer(settings, member, clock, schedule)
