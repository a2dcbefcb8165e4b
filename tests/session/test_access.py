"""Access checks: the server's status, the connection limits and the white lists of queues."""

from __future__ import annotations

import pytest

from kestrel.config.load import loads
from kestrel.errors import Unavailable
from kestrel.protocols.thrift import ThriftCodec
from kestrel.session.access import Access
from kestrel.testing.server import MemoryServer
from tests.session.thrift_calls import Refused, Taken, ThriftClient

LISTS = """
[[queues]]
name = "listed"
whiteListClientIdForEnqueue = ["anna", "bob"]
whiteListClientIdForDequeue = "carla"

[[queues]]
name = "closed"
whiteListClientIdForEnqueue = []
whiteListClientIdForDequeue = []

[[queues]]
name = "listed+open"
whiteListClientIdForEnqueue = "none"
whiteListClientIdForDequeue = "none"
"""


def access(
    server: MemoryServer, subject: bytes | None = None, claimed: bytes | None = None, *, is_trusted: bool = False
) -> Access:
    """Return the access of a client with this certificate subject and this claimed name."""
    codec = ThriftCodec(100, 100, 8)
    codec.client_id = claimed
    made = Access(server.core.session_context, server.core.status, codec, is_trusted=is_trusted)
    made.subject = subject
    return made


def may_change(checked: Access) -> bool:
    return _passes(lambda: checked.check_change())


def may_put(checked: Access, queue: bytes = b"work") -> bool:
    return _passes(lambda: checked.check_put(queue))


def may_get(checked: Access, queue: bytes = b"work") -> bool:
    return _passes(lambda: checked.check_get(queue))


def _passes(check) -> bool:
    try:
        check()
    except Unavailable as error:
        assert str(error), "a refusal has a reason"
        return False
    return True


# Status and limits.


def test_stopping_server_refuses_everything() -> None:
    server = MemoryServer()
    server.core.status.stop()
    checked = access(server)
    assert not may_change(checked)
    assert not may_put(checked)
    assert not may_get(checked)


# White lists.


@pytest.mark.parametrize(
    ("identity", "queue", "puts", "gets"),
    [
        (b"anna", b"listed", True, False),
        (b"bob", b"listed", True, False),
        (b"carla", b"listed", False, True),
        (b"Anna", b"listed", False, False),
        (b"ann", b"listed", False, False),
        (b"", b"listed", False, False),
        (None, b"listed", False, False),
        (b"anna", b"closed", False, False),
        (None, b"closed", False, False),
        (b"anna", b"work", True, True),
        (None, b"work", True, True),
        (b"anna", b"listed+child", True, False),
        (b"carla", b"listed+child", False, True),
        (None, b"listed+child", False, False),
        (None, b"listed+open", True, True),
    ],
)
def test_white_list_decides_who_may_put_and_get(identity: bytes | None, queue: bytes, puts: bool, gets: bool) -> None:
    checked = access(MemoryServer(config=loads(LISTS)), identity)
    assert (may_put(checked, queue), may_get(checked, queue)) == (puts, gets)


# Names that clients claim.


@pytest.mark.parametrize(
    ("subject", "claimed", "name"),
    [
        (None, None, None),
        (None, b"anna", b"anna"),
        (None, b"", None),
        (None, b"\xff\n", b"\xff\n"),
        (None, b"CN=anna", None),
        (None, b"=", None),
        (b"CN=anna", None, b"CN=anna"),
        (b"CN=anna", b"bob", b"CN=anna"),
        (b"", b"bob", b""),
    ],
)
def test_certificate_overrides_claimed_name_and_cannot_be_claimed(
    subject: bytes | None, claimed: bytes | None, name: bytes | None
) -> None:
    assert access(MemoryServer(), subject, claimed).identity == name


@pytest.mark.parametrize(
    ("claimed", "puts", "administers"),
    [
        ("anna", True, False),
        ("carla", False, False),
        ("night", False, True),
        ("CN=ops", False, False),
        ("CN=shop", False, False),
        ("", False, False),
        (None, False, False),
    ],
)
def test_white_lists_use_claimed_name_of_thrift_client(claimed: str | None, puts: bool, administers: bool) -> None:
    config = """administrators = ["CN=ops", "night"]
    [[queues]]
    name = "listed"
    whiteListClientIdForEnqueue = ["anna", "CN=shop"]
    whiteListClientIdForDequeue = "anna"
    """
    client = ThriftClient(MemoryServer(config=loads(config)))
    client.upgrade(claimed)
    if puts:
        assert client.put(b"listed", b"one") == 1
        assert client.items(b"listed") == [b"one"]
    else:
        with pytest.raises(Refused, match="may not put to listed"):
            client.put(b"listed", b"one")
        with pytest.raises(Refused, match="may not get from listed"):
            client.get(b"listed", 1)
        with pytest.raises(Refused, match="may not get from listed"):
            client.peek(b"listed")
    if administers:
        client.flush_all_queues()
    else:
        with pytest.raises(Refused, match="only an administrator"):
            client.flush_all_queues()


def test_waiting_get_keeps_its_claimed_name() -> None:
    server = MemoryServer(config=loads(LISTS))
    carla, anna = ThriftClient(server), ThriftClient(server)
    carla.upgrade("carla")
    anna.upgrade("anna")
    carla.send_get(b"listed", 1, 1000)
    carla.name = "anna"
    carla.send_get(b"listed", 1, 1000)
    assert carla.replies() == []
    anna.put(b"listed", b"one")
    first, second = carla.replies()
    assert first.result == [Taken(b"one", 0)]
    assert isinstance(second.result, Refused)


# Over a connection.


@pytest.mark.parametrize(
    "request_",
    [
        b"get listed\r\n",
        b"get listed/t=1000\r\n",
        b"get listed/open\r\n",
        b"get listed/peek\r\n",
        b"monitor listed 1 1\r\n",
        b"set listed 0 0 3\r\none\r\n",
    ],
)
def test_refusal_is_server_error_that_closes_and_creates_no_queue(request_: bytes) -> None:
    server = MemoryServer(config=loads(LISTS))
    client = server.connect()
    reply = client.ask(request_ + b"version\r\n")
    assert reply.startswith(b"SERVER_ERROR ")
    assert reply.count(b"\r\n") == 1
    assert client.is_closed
    assert server.manager.all_queues() == []


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (b"get listed/close\r\n", b"END\r\n"),
        (b"get listed/abort\r\n", b"END\r\n"),
        (b"confirm listed 1\r\n", b"ERROR\r\n"),
        (b"flush listed\r\n", b"END\r\n"),
        (b"delete listed\r\n", b"DELETED\r\n"),
        (b"flush_expired listed\r\n", b"0\r\n"),
    ],
)
def test_white_list_refuses_only_puts_and_gets(request_: bytes, reply: bytes) -> None:
    client = MemoryServer(config=loads(LISTS)).connect()
    assert client.ask(request_) == reply
    assert not client.is_closed


def test_client_removed_from_list_can_end_its_open_read() -> None:
    server = MemoryServer(config=loads("maxOpenTransactions = 10"))
    client = server.connect()
    assert client.ask(b"set work 0 0 3\r\none\r\nset work 0 0 3\r\ntwo\r\n") == b"STORED\r\n" * 2
    assert client.ask(b"get work/open\r\nget work/open\r\n").count(b"VALUE") == 2
    server.reload(loads("maxOpenTransactions = 10\n[default]\nwhiteListClientIdForDequeue = []"))
    assert client.ask(b"get work/close\r\nconfirm work 1\r\n") == b"END\r\nEND\r\n"
    assert client.ask(b"get work/open\r\n").startswith(b"SERVER_ERROR ")
    assert client.is_closed


# Administrators.

ADMINISTRATORS = 'administrators = ["CN=ops", "CN=night"]\n'


@pytest.mark.parametrize(
    ("settings", "name", "is_trusted", "may"),
    [
        ("", None, False, True),
        (ADMINISTRATORS, b"CN=ops", False, True),
        (ADMINISTRATORS, b"CN=night", False, True),
        (ADMINISTRATORS, b"CN=shop", False, False),
        (ADMINISTRATORS, b"", False, False),
        (ADMINISTRATORS, None, False, False),
        ("administrators = []", b"CN=ops", False, False),
        ("administrators = []", None, False, False),
        ("administrators = []", None, True, True),
    ],
)
def test_only_trusted_and_listed_clients_are_administrators(
    settings: str, name: bytes | None, is_trusted: bool, may: bool
) -> None:
    checked = access(MemoryServer(config=loads(settings)), name, is_trusted=is_trusted)
    assert _passes(lambda: checked.check_administration("shut the server down")) is may


@pytest.mark.parametrize(
    ("request_bytes", "reply"),
    [
        (b"delete work\r\n", b"SERVER_ERROR only an administrator may delete a queue\r\n"),
        (b"flush work\r\n", b"SERVER_ERROR only an administrator may flush a queue\r\n"),
        (b"flush_all\r\n", b"SERVER_ERROR only an administrator may flush all queues\r\n"),
        (b"reload\r\n", b"SERVER_ERROR only an administrator may reload the configuration\r\n"),
        (b"status readonly\r\n", b"SERVER_ERROR only an administrator may change the status\r\n"),
        (b"status\r\n", b"UP\r\n"),
        (b"shutdown\r\n", b"SERVER_ERROR only an administrator may shut the server down\r\n"),
    ],
)
def test_only_administrators_may_change_the_server(request_bytes: bytes, reply: bytes) -> None:
    server = MemoryServer(config=loads(ADMINISTRATORS))
    assert server.connect().ask(request_bytes) == reply
