"""A transport of kombu for ``kestrel://host:port``, which Celery uses. Importing this module registers it.

    import kestrel.kombu_transport

    app = Celery("tasks", broker="kestrel://localhost")

A message is an item that contains JSON. A message that is not yet acknowledged is an open read with its own memcache
connection. So the server returns it to its queue as soon as this process dies, however long it has been open.
docs/celery.md describes the options and limits.
"""

from __future__ import annotations

import os
import re
import ssl
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty
from time import monotonic, sleep
from typing import Any, Final
from weakref import WeakSet

from kombu.exceptions import ChannelError
from kombu.log import get_logger
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.virtual.base import queue_declare_ok_t
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

from kestrel import __version__
from kestrel.address import DEFAULT_PORTS, Address
from kestrel.client.blocking import BlockingClient
from kestrel.client.errors import ClientFailure, ConnectionFailed, OpenReadsError, RequestError, ServerError
from kestrel.escaping import show_name
from kestrel.tls import TlsOptions

_LOGGER: Final = get_logger(__name__)

MAX_WAIT_S: Final = 1.0
"""How long one request may wait for an item at the server."""

_ILLEGAL: Final = re.compile(r"[%/~.\s\x00-\x1f\x7f]", re.ASCII)

_TLS_NAMES: Final = {"ca_certs": "ca_file", "certfile": "cert_file", "keyfile": "key_file"} | {
    "server_hostname": "server_name"
}
"""Options of kombu's `ssl`, which Celery calls `broker_use_ssl`, and their names in `TlsOptions`."""


class _Requeue(Exception):
    """Raised in the block of an open read to return its item."""


def queue_name(queue: str, step: int = 0) -> bytes:
    """Return the name of the kestrel queue with the messages of a priority step.

    Characters that a name must not have, and ``%``, become ``%`` and two digits. A ``+`` remains, so ``parent+child``
    is a fanout queue.
    """
    name = _ILLEGAL.sub(lambda match: f"%{ord(match[0]):02X}", queue)
    return (f"{name}%p{step}" if step else name).encode()


def tls_options(options: bool | Mapping[str, Any] | None) -> TlsOptions | None:
    """Convert kombu's `ssl` to the client's options. Return None if it is empty.

    Names may begin with ``ssl_``, as in a URL. Raises ValueError for an option that the client does not have, such as
    one that turns verification off.
    """
    if not options:
        return None
    if options is True:
        return TlsOptions()
    given = {name.removeprefix("ssl_"): value for name, value in options.items()}
    if given.pop("cert_reqs", ssl.CERT_REQUIRED) != ssl.CERT_REQUIRED or not given.pop("check_hostname", True):
        raise ValueError("kestrel:// always verifies the server; remove cert_reqs and check_hostname from the options")
    unknown = given.keys() - _TLS_NAMES
    if unknown:
        raise ValueError(f"unknown TLS options {sorted(unknown)}; choose from {', '.join(_TLS_NAMES)}")
    return TlsOptions(**{_TLS_NAMES[name]: value for name, value in given.items()})


class KestrelChannel(virtual.Channel):  # type: ignore[misc]
    """A channel that keeps each unacknowledged message as an open read."""

    from_transport_options = (*virtual.Channel.from_transport_options, "priority_steps")
    priority_steps: Sequence[int] = (0,)
    """The lowest priority of each queue, in ascending order. A queue of higher priority is read first."""

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        steps = list(self.priority_steps)
        if not steps or steps[0] != 0 or steps != sorted(set(steps)) or steps[-1] > self.max_priority:
            raise ValueError(f"priority_steps must be ascending from 0 to at most {self.max_priority}, not {steps}")
        self._client = connection.queues
        self._reads = connection.reads

    # Messages.

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        step = self.priority_steps[bisect_right(self.priority_steps, self._get_message_priority(message)) - 1]
        name = queue_name(queue, step)
        if not self._client.put(name, dumps(message).encode()):
            raise ChannelError(
                f"cannot send to {show_name(name)}: the queue is full or the message is too large; "
                "raise its maxItems, maxSize or maxItemSize"
            )

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """Open the first message of the highest priority. Wait up to `timeout` seconds for one of priority 0."""
        for name in self._names(queue):
            message = self._open(name, (timeout or 0) if name == queue_name(queue) else 0)
            if message is not None:
                return message
        raise Empty

    def _open(self, name: bytes, wait_s: float) -> dict[str, Any] | None:
        with ExitStack() as read:
            item = read.enter_context(self._client.reliable_get(name, wait_s))
            if item is None:
                return None
            try:
                message: dict[str, Any] = loads(item.decode())
                # Two items may have the same tag: one message in two queues, or one that was sent again.
                tag = message["properties"]["delivery_tag"] = self._next_delivery_tag()
                self.Message(message, channel=self)
            except Exception:  # kombu's decoders of types raise many kinds, and their messages may have the data
                _LOGGER.error("an item of %s was discarded: it is not a message of kombu", show_name(name))
                return None
            self._reads[tag] = read.pop_all()
            return message

    def _end_read(self, tag: str, *, confirms: bool) -> None:
        read = self._reads.pop(tag, None)
        if read is not None:
            with suppress(_Requeue), read:
                if not confirms:
                    raise _Requeue
        elif confirms:
            raise OpenReadsError("the connection was closed: the message has returned to its queue")

    def _restore(self, message: virtual.Message) -> None:
        self._end_read(message.delivery_tag, confirms=False)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Confirm the item. Raises `ClientFailure` if its message has been or may have been returned to its queue."""
        super().basic_ack(delivery_tag, multiple)
        self._end_read(delivery_tag, confirms=True)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return the item to the head of its queue, or remove it."""
        super().basic_reject(delivery_tag, requeue)
        if not requeue:
            self._end_read(delivery_tag, confirms=True)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[virtual.Message], Any], consumer_tag: str, **options: Any
    ) -> None:
        """Call `callback` with each message of the queue."""

        def confirmed(message: virtual.Message) -> Any:
            self._end_read(message.delivery_tag, confirms=True)
            return callback(message)

        super().basic_consume(queue, no_ack, confirmed if no_ack else callback, consumer_tag, **options)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> virtual.Message | None:
        """Return a message of the queue, or None if there is none."""
        message: virtual.Message | None = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self._end_read(message.delivery_tag, confirms=True)
        return message

    # Polling.

    @property
    def polled_queues(self) -> int:
        """Number of kestrel queues that can be asked for a message now."""
        can_consume = self._consumers and self.qos.can_consume()
        return len(self._active_queues) * len(self.priority_steps) if can_consume else 0

    def _poll(self, cycle: Any, callback: Callable[..., Any], timeout: float | None = None) -> Any:
        """Deliver a message. Wait at each queue for up to `timeout` seconds if all are empty."""
        if timeout is None or self.polled_queues > 1:
            try:
                return cycle.get(callback)
            except Empty:
                if timeout is None:
                    raise
        return cycle.get(callback, timeout=timeout)

    def _get_and_deliver(self, queue: str, callback: Callable[..., Any], timeout: float | None = None) -> None:
        callback(self._get(queue, timeout), queue)

    # Queues.

    def _names(self, queue: str) -> list[bytes]:
        return [queue_name(queue, step) for step in reversed(self.priority_steps)]

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> queue_declare_ok_t:
        """Return the name of a queue, and with `passive` its size. A queue is created when it is first used."""
        if passive:
            return super().queue_declare(queue, passive, **options)
        return queue_declare_ok_t(queue or f"amq.gen-{uuid()}", 0, 0)

    def _sizes(self, queue: str) -> list[int]:
        """Return the size of each kestrel queue of a queue, on each server that has it."""
        stats = self._client.stats().values()
        keys = [f"queue_{name.decode()}_items" for name in self._names(queue)]
        return [int(each[key]) for each in stats for key in keys if key in each]

    def _size(self, queue: str) -> int:
        return sum(self._sizes(queue))

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return bool(self._sizes(queue))

    def _purge(self, queue: str) -> int:
        size = self._size(queue)
        for name in self._names(queue):
            self._client.flush(name)
        return size

    def _delete(self, queue: str, *_: Any, **__: Any) -> None:
        for name in self._names(queue):
            self._client.delete(name)


class Transport(virtual.Transport):  # type: ignore[misc]
    """A connection to a server, or to several that share the work. Use it in one thread only.

    Raises ValueError for an invalid URL or option, and OSError for an unusable TLS file.
    """

    Channel = KestrelChannel
    default_port = DEFAULT_PORTS["memcache"]
    driver_type = "kestrel"
    driver_name = "kestrel-mq"
    polling_interval = 0.1
    connection_errors = (*virtual.Transport.connection_errors, ClientFailure)
    recoverable_connection_errors = (*virtual.Transport.connection_errors, ConnectionFailed, ServerError)
    channel_errors = (*virtual.Transport.channel_errors, RequestError)
    implements = virtual.Transport.implements.extend(asynchronous=True)

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        if client.userid or client.password or (client.virtual_host or "/") != "/":
            raise ValueError("a kestrel:// URL has a host, a port and TLS options; remove the user and path from it")
        server = str(Address(client.hostname or "localhost", client.port or self.default_port))
        given = client.transport_options
        servers = given.get("servers", server)
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        self._client_options: dict[str, Any] = {"tls": tls_options(client.ssl)}
        if "timeout_s" in given:
            self._client_options["timeout_s"] = given["timeout_s"]
        self.queues = BlockingClient(self._servers, **self._client_options)
        self.reads: dict[str, ExitStack] = {}
        """The open reads of all channels, by delivery tag."""
        self._was_empty = False
        self._leave_loop = ExitStack()
        _transports.add(self)

    def driver_version(self) -> str:
        return __version__

    def establish_connection(self) -> Any:
        """Check that a server answers. Raises the failure of the last one if none does."""
        failure: ClientFailure | None = None
        for server in self._servers:
            try:
                with BlockingClient(server, **self._client_options) as client:
                    client.version()
                return super().establish_connection()
            except ClientFailure as error:
                failure = error
        assert failure is not None
        raise failure

    def close_connection(self, connection: Any) -> None:
        """Return all unacknowledged messages to their queues, and close the connections."""
        self._leave_loop.close()
        super().close_connection(connection)
        self.queues.close()

    def _collect(self, connection: Any) -> None:
        """Close after a failure, without requests, which could time out. The server returns all open reads."""
        self.queues.close()
        self.close_connection(connection)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises TimeoutError if there is none for `timeout` seconds."""
        ends_s = None if timeout is None else monotonic() + timeout
        while True:
            begins_s = monotonic()
            left_s = MAX_WAIT_S if ends_s is None else max(0.0, ends_s - begins_s)
            queues = sum(channel.polled_queues for channel in self.channels)
            wait_s = min(left_s, MAX_WAIT_S if queues == 1 else self.polling_interval)
            try:
                self.cycle.get(self._deliver, timeout=wait_s / max(1, queues))
            except Empty:
                if ends_s is not None and monotonic() >= ends_s:
                    raise TimeoutError from None
                sleep(max(0.0, begins_s + min(wait_s, self.polling_interval) - monotonic()))
            else:
                return

    # The event loop of a worker.

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages in the loop, one in each iteration, and ask empty queues again after `polling_interval`.

        Acknowledgements are sent between iterations.
        """
        reader, writer = os.pipe()
        os.write(writer, b"x")  # so that the loop does not wait while it watches the pipe
        timer = loop.call_repeatedly(self.polling_interval, self._ask_again)
        watch = partial(self._watch, loop, reader)
        loop.on_tick.add(watch)
        for descriptor in (reader, writer):
            self._leave_loop.callback(os.close, descriptor)
        self._leave_loop.callback(loop.remove_reader, reader)
        self._leave_loop.callback(loop.on_tick.discard, watch)
        self._leave_loop.callback(timer.cancel)

    def _ask_again(self) -> None:
        self._was_empty = False

    def _watch(self, loop: Any, reader: int) -> None:
        if not self._was_empty and any(channel.polled_queues for channel in self.channels):
            loop.add_reader(reader, self._deliver_next, loop, reader)

    def _deliver_next(self, loop: Any, reader: int) -> None:
        loop.remove_reader(reader)
        try:
            self.cycle.get(self._deliver)
        except Empty:
            self._was_empty = True


_transports: Final[WeakSet[Transport]] = WeakSet()


def _close_in_child() -> None:
    """Close the connections in a forked process, which may outlive its parent and would keep its messages open."""
    for transport in list(_transports):
        transport.queues.close()


os.register_at_fork(after_in_child=_close_in_child)

TRANSPORT_ALIASES["kestrel"] = f"{__name__}:{Transport.__qualname__}"
