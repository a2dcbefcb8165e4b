"""The kombu transport, with a real server."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu.asynchronous import Hub
from kombu.exceptions import ChannelError, OperationalError
from kombu.simple import SimpleQueue

import kestrel
from kestrel.client.errors import CannotConnect, OpenReadsError
from kestrel.kombu_transport import Transport, queue_name, tls_options
from kestrel.tls import TlsOptions
from tests.client.certificates import Authority
from tests.server.running import Processes, Server, eventually, own_port

CONFIG = 'queuePath = "queues"\n[[queues]]\nname = "small"\nmaxItems = 1\n'

STEPS = {"priority_steps": [0, 3, 6, 9]}

QUEUES = (b"work", b"other", b"small", b"work%p3", b"work%p6", b"work%p9", b"big", b"big+a", b"big+b", b"a%2Eb")

Connect = Callable[..., Connection]


HOST = "mq.example"
"""The name in the certificate of the server's second endpoint."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    cert_file, key_file = authority.sign(HOST)
    with Processes(tmp_path_factory.mktemp("server")) as processes:
        tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={cert_file}"
        yield processes.serve(CONFIG, "--memcache", tls)


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """Return a function that makes connections to an empty server. They poll without pauses."""
    with server.connect() as client:
        for name in QUEUES:
            client.ask(b"delete %b\r\n" % name, b"DELETED\r\n")
    connections = []

    def connect(**options: Any) -> Connection:
        connection = Connection(
            f"kestrel://127.0.0.1:{server.port}", transport_options={"polling_interval": 0.001, **options}
        )
        connections.append(connection)
        return connection

    yield connect
    for connection in connections:
        connection.release()


def send(connection: Connection, *bodies: object, queue: str = "work", priority: int | None = None) -> None:
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(body, routing_key=queue, priority=priority)


def bodies_in(connection: Connection, queue: str = "work") -> list[Any]:
    """Remove all messages of a queue."""
    channel = connection.channel()
    messages = iter(lambda: channel.basic_get(queue, no_ack=True), None)
    return [message.decode() for message in messages]


def take(connection: Connection, queue: str = "work") -> Any:
    """Open a message."""
    message = connection.default_channel.basic_get(queue)
    assert message is not None
    return message


def items_of(server: Server, name: bytes) -> int:
    with server.connect() as client:
        return int(client.stats().get(f"queue_{name.decode()}_items", 0))


def test_messages_arrive_in_order_with_their_types(connect: Connect) -> None:
    connection = connect()
    send(connection, "a", {"b": [1, None]}, b"\0\xff")
    assert bodies_in(connection) == ["a", {"b": [1, None]}, b"\0\xff"]


def test_acknowledged_message_is_gone(connect: Connect) -> None:
    connection = connect()
    send(connection, "a")
    take(connection).ack()
    connection.release()
    assert bodies_in(connect()) == []


def test_acknowledgements_may_come_in_any_order(connect: Connect) -> None:
    connection = connect()
    send(connection, "a", "b", "c")
    a, b, c = (take(connection) for _ in range(3))
    c.ack()
    a.ack()
    connection.release()
    assert bodies_in(connect()) == ["b"]
    assert b.payload == "b"


def test_closing_returns_unacknowledged_messages_in_order(connect: Connect) -> None:
    connection = connect()
    send(connection, "a", "b", "c")
    for _ in range(2):
        take(connection)
    connection.release()
    assert bodies_in(connect()) == ["a", "b", "c"]


def test_acknowledging_after_the_connection_closed_fails(connect: Connect) -> None:
    connection = connect()
    send(connection, "a")
    message = take(connection)
    connection.release()
    with pytest.raises(OpenReadsError):
        message.ack()
    assert issubclass(OpenReadsError, Transport.connection_errors)  # these are logged by Celery


def test_rejected_message_is_removed(connect: Connect) -> None:
    connection = connect()
    send(connection, "a")
    take(connection).reject()
    connection.release()
    assert bodies_in(connect()) == []


def test_requeued_message_is_first_again(connect: Connect) -> None:
    connection = connect()
    send(connection, "a", "b")
    take(connection).requeue()
    assert bodies_in(connection) == ["a", "b"]


def test_consumer_gets_at_most_prefetch_count_messages(connect: Connect) -> None:
    connection = connect()
    send(connection, "a", "b", "c")
    messages: list[Any] = []
    with Consumer(connection, [Queue("work")], on_message=messages.append, prefetch_count=2):
        connection.drain_events(timeout=1)
        connection.drain_events(timeout=1)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.01)
        messages[0].ack()
        connection.drain_events(timeout=1)
    assert [message.payload for message in messages] == ["a", "b", "c"]


def test_consumer_without_acknowledgements_confirms_each_message(connect: Connect) -> None:
    connection = connect()
    send(connection, "a")
    messages: list[Any] = []
    with Consumer(connection, [Queue("work")], on_message=messages.append, no_ack=True):
        connection.drain_events(timeout=1)
    connection.release()
    assert len(messages) == 1
    assert bodies_in(connect()) == []


def test_one_consumer_reads_several_queues(connect: Connect) -> None:
    connection = connect()
    send(connection, "a")
    send(connection, "b", queue="other")
    messages: list[Any] = []
    with Consumer(connection, [Queue("work"), Queue("other")], on_message=messages.append):
        connection.drain_events(timeout=1)
        connection.drain_events(timeout=1)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0)
    assert {message.payload for message in messages} == {"a", "b"}


def test_topic_exchange_copies_a_message_to_each_bound_queue(connect: Connect) -> None:
    connection = connect()
    exchange = Exchange("news", "topic")
    queues = [Queue("work", exchange, "news.#"), Queue("other", exchange, "news.sport")]
    with connection.Producer(exchange=exchange) as producer:
        producer.publish("goal", routing_key="news.sport", declare=queues)
    first, second = take(connection, "work"), take(connection, "other")
    first.ack()
    second.requeue()
    connection.release()
    assert (bodies_in(connect(), "work"), bodies_in(connect(), "other")) == ([], ["goal"])


def test_fanout_child_gets_the_messages_of_its_parent(connect: Connect) -> None:
    connection = connect()
    assert bodies_in(connection, "big+a") == []
    send(connection, "news", queue="big")
    assert bodies_in(connection, "big+a") == ["news"]


def test_higher_priorities_are_read_first(connect: Connect) -> None:
    connection = connect(**STEPS)
    for priority in (0, 2, 3, 9, 5):
        send(connection, priority, priority=priority)
    send(connection, "none")
    messages: list[Any] = []
    with Consumer(connection, [Queue("work")], on_message=messages.append):
        for _ in range(6):
            connection.drain_events(timeout=1)
    assert [message.payload for message in messages] == [9, 3, 5, 0, 2, "none"]


@pytest.mark.parametrize("steps", [[], [1], [0, 3, 3], [9, 0], [0, 10]])
def test_invalid_priority_steps_are_refused(connect: Connect, steps: list[int]) -> None:
    with pytest.raises(ValueError, match="priority_steps must be ascending from 0 to at most 9"):
        connect(priority_steps=steps).channel()


def test_size_and_purge_include_all_priorities(connect: Connect) -> None:
    connection = connect(**STEPS)
    send(connection, "a", "b")
    send(connection, "c", priority=9)
    channel = connection.default_channel
    assert channel.queue_declare("work", passive=True).message_count == 3
    assert channel.queue_purge("work") == 3
    assert bodies_in(connection) == []


def test_deleted_queue_is_gone(connect: Connect) -> None:
    connection = connect()
    queue = Queue("work", Exchange("work"), "work", channel=connection)
    queue.declare()
    send(connection, "a")
    queue.delete()
    with pytest.raises(ChannelError, match="no queue 'work'"):
        connection.channel().queue_declare("work", passive=True)


def test_refused_message_raises_an_error_with_the_limits(connect: Connect) -> None:
    connection = connect()
    send(connection, "a", queue="small")
    with pytest.raises(ChannelError, match=r"cannot send to small: .*; raise its maxItems, maxSize or maxItemSize$"):
        send(connection, "b", queue="small")


@pytest.mark.parametrize(
    "item",
    [
        b"not JSON",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"properties": 5}',
        b'{"body": {"__type__": "decimal", "__value__": "x"}, "properties": {}}',
        b'{"body": {"__type__": "uuid", "__value__": {"bytes": "SECRETDATA123456"}}, "properties": {}}',
        b'{"body": "a", "properties": {"body_encoding": "unknown"}}',
    ],
)
def test_item_that_is_no_message_is_discarded(
    connect: Connect, server: Server, item: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        client.put(b"work", item)
    connection = connect()
    send(connection, "a")
    messages: list[Any] = []
    with Consumer(connection, [Queue("work")], on_message=messages.append):
        connection.drain_events(timeout=1)
    assert [message.payload for message in messages] == ["a"]
    assert [record.getMessage() for record in caplog.records] == [
        "an item of work was discarded: it is not a message of kombu"
    ]


def test_characters_that_names_must_not_have_are_escaped(connect: Connect, server: Server) -> None:
    send(connect(), "a", queue="a.b")
    assert items_of(server, b"a%2Eb") == 1
    assert queue_name("a b/c~%\n") == b"a%20b%2Fc%7E%25%0A"
    assert queue_name("café+x") == "café+x".encode()
    assert queue_name("work", 3) == b"work%p3"


# Connections.


def test_collected_connection_returns_its_messages(connect: Connect, server: Server) -> None:
    connection = connect()
    send(connection, "a", "b")
    messages = [take(connection), take(connection)]
    connection.collect()
    eventually(lambda: items_of(server, b"work") == 2, "the messages are returned")
    with pytest.raises(OpenReadsError):
        messages[0].ack()


def test_forked_process_does_not_keep_the_messages_of_its_parent(connect: Connect, server: Server) -> None:
    connection = connect()
    send(connection, "a")
    message = take(connection)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        connection.collect()
        eventually(lambda: items_of(server, b"work") == 1, "the message is returned")
    finally:
        os.close(reader)
        os.close(writer)
        os.waitpid(child, 0)
    assert message.payload == "a"


def test_any_of_several_servers_is_enough(server: Server) -> None:
    with own_port() as port:
        servers = [f"127.0.0.1:{port}", f"127.0.0.1:{server.port}"]
        with Connection("kestrel://", transport_options={"servers": servers}) as connection:
            connection.ensure_connection(max_retries=1)
            send(connection, "a", queue="other")
            assert bodies_in(connection, "other") == ["a"]


def test_unreachable_server_is_a_recoverable_error() -> None:
    with own_port() as port, Connection(f"kestrel://127.0.0.1:{port}") as connection:
        with pytest.raises(CannotConnect):
            connection.connect()
        with pytest.raises(OperationalError):
            connection.ensure_connection(max_retries=1, interval_start=0)


def test_driver_reports_the_release(connect: Connect) -> None:
    assert connect().transport.driver_version() == kestrel.__version__


def test_messages_are_sent_over_tls(server: Server, authority: Authority) -> None:
    _, port = re.findall(r"memcache: listening on 127\.0\.0\.1:(\d+)", server.logged())
    url = f"kestrel://127.0.0.1:{port}"
    with Connection(f"{url}?ssl_ca_certs={authority.ca_file}&ssl_server_hostname={HOST}") as connection:
        send(connection, "a", queue="other")
        assert bodies_in(connection, "other") == ["a"]
    with Connection(url, ssl=True) as connection, pytest.raises(CannotConnect, match="certificate verify failed"):
        connection.connect()


@pytest.mark.parametrize("url", ["kestrel://user@mq", "kestrel://user:secret@mq", "kestrel://mq/path"])
def test_url_with_user_or_path_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="remove the user and path"):
        Connection(url).transport  # noqa: B018


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (False, None),
        (True, TlsOptions()),
        ({"ca_certs": "ca.pem", "server_hostname": "mq"}, TlsOptions(ca_file="ca.pem", server_name="mq")),
        (
            {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem", "ssl_cert_reqs": ssl.CERT_REQUIRED},
            TlsOptions(cert_file="cert.pem", key_file="key.pem"),
        ),
    ],
)
def test_tls_options_are_those_of_celery(options: Any, expected: TlsOptions | None) -> None:
    assert tls_options(options) == expected


@pytest.mark.parametrize(
    "query", ["ssl_cert_reqs=none", "ssl_check_hostname=false", "ssl_ca_certs=ca.pem&ssl_ciphers=ALL"]
)
def test_tls_options_that_would_be_ignored_are_refused(query: str) -> None:
    with pytest.raises(ValueError, match=r"always verifies|unknown TLS options \['ciphers'\]"):
        Connection(f"kestrel://mq?{query}").transport  # noqa: B018


# The event loop of a worker.


class Loop:
    """An event loop of a worker that consumes one queue."""

    def __init__(self, connection: Connection, **options: Any) -> None:
        self.hub = Hub()
        self.messages: list[Any] = []
        connection.connect()
        connection.register_with_event_loop(self.hub)
        self.connection = connection
        self.consumer = Consumer(connection, [Queue("work")], on_message=self.messages.append, **options)
        self.consumer.consume()

    def run(self, iterations: int) -> list[Any]:
        """Run iterations of the loop. Return the bodies of all messages until now."""
        for _ in range(iterations):
            self.hub.run_once()
        return [message.payload for message in self.messages]

    def close(self) -> None:
        self.connection.release()
        assert not self.hub.on_tick
        self.hub.close()


def test_event_loop_delivers_one_message_in_each_iteration(connect: Connect) -> None:
    connection = connect()
    send(connection, *range(4))
    loop = Loop(connection)
    assert loop.run(1) == [0]
    assert loop.run(2) == [0, 1, 2]
    loop.close()
    assert bodies_in(connect()) == [0, 1, 2, 3]


def test_event_loop_continues_below_the_prefetch_count(connect: Connect) -> None:
    connection = connect()
    send(connection, *range(4))
    loop = Loop(connection, prefetch_count=2)
    assert loop.run(5) == [0, 1]
    loop.messages[0].ack()
    assert loop.run(2) == [0, 1, 2]
    loop.close()
    assert bodies_in(connect()) == [1, 2, 3]


def test_event_loop_asks_an_empty_queue_again_after_the_interval(connect: Connect) -> None:
    connection = connect(polling_interval=0.01)
    loop = Loop(connection)
    assert loop.run(1) == []
    send(connection, "a")
    eventually(lambda: loop.run(1) == ["a"], "the message is delivered")
    loop.close()


def test_simple_queue_works(connect: Connect) -> None:
    with connect() as connection, SimpleQueue(connection, "work") as queue:
        queue.put({"a": 1})
        message = queue.get(timeout=1)
        assert message.payload == {"a": 1}
        message.ack()
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.01)
