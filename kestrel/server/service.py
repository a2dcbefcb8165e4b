"""The server as a Twisted service, which `twistd kestrel` runs: it starts, reloads and stops the assembled parts."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attrs import evolve
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, DeferredLock, maybeDeferred, succeed
from twisted.internet.interfaces import IListeningPort
from twisted.internet.ssl import CertificateOptions
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from kestrel import __version__, compiled
from kestrel.address import Address
from kestrel.cluster.member import SERVER_SETS
from kestrel.cluster.uri import KazooMissing, require_kazoo
from kestrel.config.dump import (
    queue_settings_given,
    queue_settings_over_limit,
    server_settings_given,
)
from kestrel.config.model import Config, ZooKeeperSettings
from kestrel.config.resolved import ResolvedConfig, masked_queues
from kestrel.disk.files import AtomicFile, Disk
from kestrel.errors import KestrelError, OwnershipLost, StorageError, StorageInUse
from kestrel.escaping import count, show_name
from kestrel.net import hub
from kestrel.net.ports import HubListener
from kestrel.net.tls_endpoint import ReloadableTls, TlsServerEndpoint
from kestrel.server.assembly import Environment, Listener, assemble_server
from kestrel.server.dead_peers import enable_tcp_keepalive
from kestrel.server.endpoints import (
    ADMIN,
    describe,
    endpoints_to_serve,
    is_plain_tcp,
    listen,
    parse_endpoint,
    port_number,
    use_backlog,
)
from kestrel.server.process import max_connections_for_file_limit, use_monotonic_time
from kestrel.server.startup_errors import EX_CANNOT_CREATE, EX_CONFIG, EX_TRY_AGAIN, CannotServe
from kestrel.storage.failures import describe_error, error_of
from kestrel.storage.folder_resources import wall_clock_ms
from kestrel.storage.interfaces import IStorage
from kestrel.storage.registry import settings_bounded_by, settings_unused_by, storage_from_string
from kestrel.storage.total_memory import MemoryLimit

if TYPE_CHECKING:
    from kestrel.server.announcer import Announcer

log = Logger(__name__)

_BUILDS: Final = {"compiled": "compiled", "pure": "pure Python"}
STORAGE_THREADS: Final = 8
REPLY_DRAIN_TIMEOUT_S: Final = 5.0
"""How long a stop waits for clients to read their pending replies."""


class KestrelService(Service):
    """One server. It listens in `privilegedStartService`, so that it may use low ports, and loads queues in
    `startService`.

    Both raise `CannotServe` if the operator must fix something first. `endpoints` are endpoint strings that replace the
    configured port of a protocol. `trusted` are additional endpoints whose clients are administrators.

    `load_config` reloads the configuration, in a thread, and `reloaded` is called with it. `loaded` is called when the
    queues are loaded, before the first client is served. `failed` is called if the server cannot serve, before the
    reactor is stopped.
    """

    name = "kestrel"
    version = __version__

    def __init__(
        self,
        reactor: Any,
        config: Config,
        *,
        endpoints: Mapping[str, Sequence[str]] | None = None,
        trusted: Mapping[str, Sequence[str]] | None = None,
        load_config: Callable[[], Config] | None = None,
        loaded: Callable[[], object] = lambda: None,
        reloaded: Callable[[Config], object] = lambda config: None,
        failed: Callable[[CannotServe], object] = lambda error: None,
    ) -> None:
        use_monotonic_time(reactor)
        config = _within_file_limit(config)
        if config.zookeeper is not None:
            _check_zookeeper(config.zookeeper)
        self._reactor = reactor
        self._load_config = load_config
        self._fixed = _fixed(config)
        self._tell_loaded = loaded
        self._tell_reloaded = reloaded
        self._tell_failed = failed
        self._reloading = DeferredLock()
        self._is_serving = False
        self._threads = ThreadPool(0, STORAGE_THREADS, name="storage")
        self._in_thread = partial(deferToThreadPool, reactor, self._threads)
        environment = Environment(
            clock=reactor,
            seconds=reactor.seconds,
            now_ms=wall_clock_ms,
            schedule=reactor.callFromThread,
            in_thread=self._in_thread,
            make_storage=partial(self._make_storage, _storage_description(config)),
            status_file=AtomicFile(Disk(), os.fsencode(config.status_file)),
            has_hub=hub.IS_AVAILABLE,
        )
        parts = assemble_server(
            ResolvedConfig(config),
            environment,
            self,
            storage_name=_storage_name(config),
            endpoints=endpoints_to_serve(config, endpoints or {}),
            trusted=trusted,
            is_serving=lambda: self._is_serving,
            server_sets=self._server_sets,
        )
        self._core = parts.core
        self.manager = self._core.manager
        self.status = self._core.status
        self._storage_ended: Deferred[StorageError] = getattr(parts.storage, "ended", Deferred())
        self._listeners = parts.listeners
        self._hub = parts.hub
        self._tcp = reactor if parts.hub is None else HubListener(reactor, parts.hub)
        self._admin = parts.admin
        self._admin_is_there = False
        self._admin_is_wanted = bool((endpoints or {}).get(ADMIN)) or "http_port" in config.admin.given
        self._ports: list[IListeningPort] = []
        self._tls: list[ReloadableTls] = []
        self._make_announcer = parts.make_announcer
        self._announcer: Announcer | None = None
        self._advertised: dict[str, list[Address]] = {}
        self._try_it_port: int | None = None
        self._dead_peers = parts.dead_peers
        self._started_at = 0.0
        self._is_stopping = False

    def _make_storage(self, description: str, memory_limit: MemoryLimit) -> IStorage:
        try:
            return storage_from_string(description, self._reactor, self._in_thread, memory_limit)
        except StorageError as error:
            raise CannotServe(str(error), EX_CONFIG) from error

    # Starting.

    def privilegedStartService(self) -> None:
        """Bind the ports. Clients may connect from now on and are served when the queues are loaded."""
        if all(each.is_trusted or each.protocol == ADMIN for each in self._listeners):
            raise CannotServe("every protocol is turned off: there is nothing to serve", EX_CONFIG)
        if self._hub is not None:
            self._reactor.addReader(self._hub)
        for each in self._listeners:
            self._listen(each)

    def _listen(self, listener: Listener) -> None:
        protocol, endpoint, factory, is_trusted = listener

        def listening(port: IListeningPort) -> None:
            self._ports.append(port)
            self._keep_alive(port, self._core.config)
            use_backlog(port, endpoint, self._core.config.connection_backlog)
            self._admin_is_there |= protocol == ADMIN
            number = port_number(port)
            if number is not None and not is_trusted and protocol != ADMIN:
                address = Address(port.getHost().host, number)  # type: ignore[attr-defined]
                self._advertised.setdefault(protocol, []).append(address)
            if protocol == "memcache" and endpoint.startswith("tcp:") and not is_trusted:
                self._try_it_port = port_number(port)
            log.info("{protocol}: listening on {where}", protocol=protocol, where=describe(port, protocol))

        is_the_hubs = is_plain_tcp(endpoint) and protocol != ADMIN
        server = parse_endpoint(self._tcp if is_the_hubs else self._reactor, endpoint)
        if isinstance(server, TlsServerEndpoint):
            self._tls.append(server.tls)
        opened = listen(server, protocol, endpoint, factory).addCallback(listening)
        if protocol == ADMIN and not self._admin_is_wanted:
            opened.addErrback(_skip_admin_port)
        _now(opened, self._stop_because)

    @staticmethod
    def _keep_alive(port: IListeningPort, config: Config) -> None:
        listening = getattr(port, "socket", None)
        if isinstance(listening, socket.socket):
            enable_tcp_keepalive(listening, config.keep_alive_ms)

    def startService(self) -> None:
        """Open the storage and load the queues, then serve."""
        super().startService()  # type: ignore[no-untyped-call]
        self._started_at = self._reactor.seconds()
        unused = settings_ignored_by_storage(self._core.config)
        if unused:
            log.warn("These settings have no effect with this storage: {settings}", settings=", ".join(unused))
        _warn_of_masked_queues(self._core.config)
        if self._make_announcer is not None:
            self._announcer = self._make_announcer(self._advertised)
        if compiled.IS_OUTDATED:
            log.warn(
                "Running as pure Python, which is slower: {reason}. To build the extension: make compiled",
                reason=compiled.REASON,
            )
        self._threads.start()
        try:
            loading = self._core.start()
        except Exception as error:  # a storage plugin may raise any exception
            self._threads.stop()
            raise _storage_failure(error) from error
        loading.addCallback(self._loaded).addErrback(self._stop_because)

    def _loaded(self, _: object) -> None:
        if self._is_stopping:
            return
        loaded_s = self._reactor.seconds() - self._started_at
        self._tell_loaded()
        self._core.serve()
        queues, delayed = self.manager.all_queues(), self.manager.delayed.items
        log.info(
            "kestrel {version} ({build}) serves {queues} with {items}{delayed} of {storage}, loaded in {seconds:.2f} s",
            version=__version__,
            build=_BUILDS[compiled.BUILD],
            storage=_storage_name(self._core.config),
            queues=count(len(queues), "queue"),
            items=count(sum(queue.store.items for queue in queues), "item"),
            delayed=f", and {delayed} delayed," if delayed else "",
            seconds=loaded_s,
        )
        if self._try_it_port is not None:
            log.info(
                r"Try it: printf 'set work 0 0 5\r\nhello\r\nget work\r\nquit\r\n' | nc localhost {port}",
                port=self._try_it_port,
            )
        if self._admin_is_there:  # recorded statistics take memory
            self._admin.start()
        self._is_serving = True
        if self._announcer is not None:
            self.status.watch(self._announcer.apply_status)
            self._announcer.start(self.status.published)
        self._dead_peers.keep(self._core.config.keep_alive_ms)
        self._storage_ended.addCallback(lambda error: self._stop_because(Failure(error)))

    def _stop_because(self, failure: Failure) -> None:
        """Stop the process after a failure that occurs too late to be raised."""
        error = failure.value if isinstance(failure.value, CannotServe) else _storage_failure(error_of(failure))
        log.critical("The server cannot serve: {reason}", reason=str(error))
        if self._is_stopping:
            return  # it was stopped before it could serve
        self._is_stopping = True
        self._tell_failed(error)
        self._reactor.callWhenRunning(self._reactor.stop)

    # Stopping.

    def stopService(self) -> Deferred[None]:
        """Close the ports, answer waiting clients, send pending replies, and close the storage."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._is_stopping = True
        was_serving, self._is_serving = self._is_serving, False
        self._dead_peers.keep(None)
        self._admin.hang_up()
        log.info("kestrel is stopping")
        announcer, self._announcer = self._announcer, None
        left = succeed(None) if announcer is None or not was_serving else announcer.stop()
        ports, self._ports = self._ports, []
        stopped = DeferredList([maybeDeferred(port.stopListening) for port in ports], consumeErrors=True)
        stopped.addCallback(self._hang_up)
        stopped.addCallback(lambda _: self._core.close())
        stopped.addBoth(lambda result: left.addCallback(lambda _: result))
        return stopped.addBoth(self._closed)

    def _hang_up(self, _: object) -> Deferred[None]:
        gone = self._core.hang_up()
        late = self._reactor.callLater(REPLY_DRAIN_TIMEOUT_S, self._core.abort)

        def all_gone(_: object) -> None:
            self._admin.abort()  # the response to a client's shutdown request has been sent
            if late.active():
                late.cancel()

        return gone.addCallback(all_gone)

    def _closed(self, result: Any) -> None:
        if isinstance(result, Failure):
            log.failure("The server did not stop cleanly", result)
        if self._threads.started:
            self._threads.stop()
        if self._hub is not None:
            self._reactor.removeReader(self._hub)
            self._hub.close()
        log.info("kestrel has stopped")

    # `ServerControl`: operations that clients can request.

    def uptime_s(self) -> int:
        return int(self._reactor.seconds() - self._started_at)

    def reload(self) -> Deferred[None]:
        """Reload queue and connection settings from the configuration file, and certificates from their files.

        Fails and changes nothing if one of them is wrong. Files are read in a thread, since a large one takes time.
        """
        reading = self._reloading.run(self._in_thread, self._load_again)
        return reading.addCallbacks(self._use, self._not_reloaded)

    def _load_again(self) -> _ReloadedConfig:
        return _ReloadedConfig(
            None if self._load_config is None else ResolvedConfig(_within_file_limit(self._load_config())),
            [(tls, _load_certificates(tls)) for tls in self._tls],
        )

    def _use(self, loaded: _ReloadedConfig) -> Deferred[None]:
        for tls, options in loaded.certificates:
            tls.use(options)
        if loaded.config is None:
            return succeed(None)
        config = loaded.config.config
        differing = [name for name, value in _fixed(config).items() if value != self._fixed[name]]
        if differing:
            log.warn("These settings change only at the next start: {settings}", settings=", ".join(differing))
        _warn_of_masked_queues(config)
        log.info("The configuration was reloaded")
        self._tell_reloaded(config)
        for port in self._ports:
            self._keep_alive(port, config)
        if not self._is_stopping:
            self._dead_peers.keep(config.keep_alive_ms)
        return self._core.use(loaded.config)

    @staticmethod
    def _not_reloaded(failure: Failure) -> Failure:
        log.error("The configuration was not reloaded: {reason}", reason=failure.getErrorMessage())
        return failure

    def iter_config(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, list[tuple[str, str]]]]:
        return self._core.iter_config(names)

    def _server_sets(self) -> dict[str, bool]:
        if self._announcer is None:
            return {}
        is_in = self._announcer.is_in or ()
        return {name: name in is_in for name in SERVER_SETS}

    def shutdown(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        log.info("A client requested the shutdown")
        self._reactor.callWhenRunning(self._reactor.stop)


def _skip_admin_port(failure: Failure) -> None:
    """Log that the default admin port cannot be opened, without failing: another server on this machine may use it."""
    log.warn("There are no admin pages: {reason}", reason=failure.getErrorMessage())


def _storage_description(config: Config) -> str:
    if config.storage is not None:
        return config.storage
    return f"journal:{config.queue_path}?reserve={config.disk_reserve_size_bytes}"


def _storage_name(config: Config) -> str:
    """Return the storage without its options, for the log and the admin port."""
    return _storage_description(config).partition("?")[0]


def _check_zookeeper(settings: ZooKeeperSettings) -> None:
    """Raise `CannotServe` if the ZooKeeper settings are invalid or kazoo is missing."""
    try:
        require_kazoo()
    except KazooMissing as error:
        raise CannotServe(str(error), EX_CONFIG) from error
    from kestrel.server.zookeeper import check_zookeeper

    check_zookeeper(settings)


def settings_ignored_by_storage(config: Config) -> list[str]:
    """Return the paths of the configured settings that have no effect with the storage, or none above a limit."""
    description = _storage_description(config)
    said_by_storage = () if config.storage is None else ("queue_path", "disk_reserve_size_bytes")
    return [
        *server_settings_given(config, said_by_storage),
        *queue_settings_given(config, settings_unused_by(description)),
        *queue_settings_over_limit(config, settings_bounded_by(description)),
    ]


def _warn_of_masked_queues(config: Config) -> None:
    for name in masked_queues(config):
        log.warn("Alias {name} masks the queue of that name, which has settings", name=show_name(name))


def _within_file_limit(config: Config) -> Config:
    """Reduce `max_connections` so that enough open files are left for the storage. Log that if it was configured."""
    most = max_connections_for_file_limit()
    if config.max_connections <= most:
        return config
    if "max_connections" in config.given:
        log.warn(
            "maxConnections is {most} instead of {wanted}: "
            "this process cannot open more files (ulimit -n, LimitNOFILE)",
            most=most,
            wanted=config.max_connections,
        )
    return evolve(config, max_connections=most)


def _fixed(config: Config) -> dict[str, object]:
    """Return the settings that a reload does not change, by name."""
    return {
        "listenAddress": config.listen_address,
        "memcacheListenPort": config.memcache_listen_port,
        "textListenPort": config.text_listen_port,
        "thriftListenPort": config.thrift_listen_port,
        "tls": config.tls,
        "zookeeper": config.zookeeper,
        "httpPort and listenAddress in admin": (config.admin.http_port, config.admin.listen_address),
        "connectionBacklog": config.connection_backlog,
        "queuePath, diskReserveSize or storage": _storage_description(config),
        "statusFile": config.status_file,
        "defaultStatus": config.default_status,
    }


class _ReloadedConfig(NamedTuple):
    """The results of reading the configuration and certificates again."""

    config: ResolvedConfig | None
    certificates: list[tuple[ReloadableTls, CertificateOptions]]


def _load_certificates(tls: ReloadableTls) -> CertificateOptions:
    try:
        return tls.files.load()
    except OSError as error:
        raise KestrelError(f"cannot use the certificates: {error}") from error


def _now(deferred: Deferred[None], later: Callable[[Failure], None]) -> None:
    """Raise the failure of a Deferred that has already failed. Pass a failure at a later time to `later`."""
    is_later = False
    failed: list[Failure] = []

    def fails(failure: Failure) -> None:
        if is_later:
            later(failure)
        else:
            failed.append(failure)

    deferred.addErrback(fails)
    is_later = True
    for failure in failed:
        failure.raiseException()


def _storage_failure(error: BaseException) -> CannotServe:
    """Return the error to report when a storage cannot start, or has permanently failed, because of `error`."""
    status = EX_TRY_AGAIN if isinstance(error, StorageInUse | OwnershipLost) else EX_CANNOT_CREATE
    sentence = str(error) if isinstance(error, KestrelError) else describe_error(error)
    return CannotServe(sentence, status)
