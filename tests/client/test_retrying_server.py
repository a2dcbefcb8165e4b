"""RetryingServer: when and how often it repeats a request."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kestrel.client.errors import CannotConnect, ClientFailure, ConnectionFailed, RequestError, ServerError
from kestrel.client.retrying_server import LONGEST_PAUSE_S, RetryingServer
from kestrel.client.thrift import ThriftCalls
from kestrel.errors import BadQueueName
from kestrel.protocols import thrift_binary as binary
from kestrel.tls import TlsOptions
from tests.client.certificates import Authority
from tests.client.scripted import Connection, scripted, talk, talk_and_stay
from tests.client.sleeping import Time
from tests.client.test_tls import HOST, refused, served_by
from tests.server.running import PATIENCE_S, own_port


@pytest.fixture
def time() -> Time:
    return Time()


def patient(address: str, time: Time, patience_s: float = 60.0, **options: Any) -> RetryingServer:
    return RetryingServer(
        address,
        timeout_s=PATIENCE_S,
        patience_s=patience_s,
        seconds=time.seconds,
        sleep=time.sleep,
        random=Random(1),
        **options,
    )


def version(calls: ThriftCalls) -> Any:
    return calls.version()


def request(number: int) -> bytes:
    """Return the request for the version with a call number."""
    return binary.frame(binary.header(b"get_version", binary.CALL, number), binary.END)


def answer(number: int) -> tuple[bytes, bytes]:
    """Return a request and its reply."""
    header = binary.header(b"get_version", binary.REPLY, number)
    return request(number), binary.frame(header, binary.binary_field(0, b"1.0"), binary.END)


def refusal(number: int, why: str = "the server is Quiescent", type_: int = binary.INTERNAL_ERROR) -> Connection:
    """Return a script that refuses a request."""
    header = binary.header(b"get_version", binary.EXCEPTION, number)
    return talk((request(number), binary.frame(header, binary.application_exception(type_, why))))


def silence(number: int) -> Connection:
    """Return a script that closes the connection after a request."""
    return talk((request(number), b""))


def test_reply_is_returned_at_once_and_the_connection_kept(time: Time) -> None:
    with scripted(talk_and_stay(answer(1), answer(2))) as server, patient(server.address, time) as asking:
        assert [asking.ask(version), asking.ask(version)] == ["1.0", "1.0"]
    assert time.pauses_s == []


def test_failed_request_is_repeated_on_a_new_connection(time: Time) -> None:
    garbage = talk((request(3), b"\x00\x00\x00\x04abcd"))
    script = (refusal(1), silence(2), garbage, silence(4), talk(answer(5)))
    with scripted(*script) as server, patient(server.address, time) as asking:
        assert asking.ask(version) == "1.0"
    assert len(time.pauses_s) == 4


def test_pauses_double_up_to_a_maximum_with_random_parts(time: Time) -> None:
    with own_port() as port, patient(f"127.0.0.1:{port}", time, 60) as asking, pytest.raises(CannotConnect):
        asking.ask(version)
    whole_s = [0.5, 1, 2, 4, *[LONGEST_PAUSE_S] * 20]
    assert len(time.pauses_s) > 10
    for pause_s, most_s in zip(time.pauses_s[:-1], whole_s, strict=False):
        assert most_s / 2 <= pause_s <= most_s
    assert len(set(time.pauses_s)) == len(time.pauses_s)


@pytest.mark.parametrize("patience_s", [0.1, 7, 3600])
def test_last_attempt_is_at_the_end_of_the_patience(time: Time, patience_s: float) -> None:
    with own_port() as port, patient(f"127.0.0.1:{port}", time, patience_s) as asking:
        with pytest.raises(CannotConnect, match=f"^127.0.0.1:{port}: .*refused"):
            asking.ask(version)
        assert sum(time.pauses_s) == pytest.approx(patience_s)


def test_without_patience_there_is_one_attempt(time: Time) -> None:
    with (
        scripted(silence(1)) as server,
        patient(server.address, time, 0) as asking,
        pytest.raises(ConnectionFailed, match=f"^{server.address}: "),
    ):
        asking.ask(version)
    assert time.pauses_s == []


def test_reply_resets_the_patience_and_the_pauses(time: Time) -> None:
    script = (silence(1), silence(2), talk(answer(3)), silence(4), talk(answer(5)))
    with scripted(*script) as server, patient(server.address, time, 2) as asking:
        assert asking.ask(version) == "1.0"
        asking.close()  # the server closes it too
        time.now_s += 100
        assert asking.ask(version) == "1.0"
    assert time.pauses_s[2] <= 0.5


@pytest.mark.parametrize(
    ("why", "type_"), [("unknown method", binary.UNKNOWN_METHOD), ("item too large; limit=1", binary.INTERNAL_ERROR)]
)
def test_invalid_request_fails_at_once_and_names_the_server(time: Time, why: str, type_: int) -> None:
    with (
        scripted(refusal(1, why, type_)) as server,
        patient(server.address, time) as asking,
        pytest.raises(RequestError, match=f"^{server.address}: {why}$"),
    ):
        asking.ask(version)
    assert time.pauses_s == []


@pytest.mark.parametrize(
    ("make_call", "error"),
    [
        (lambda calls: calls.put(b"a/b", [b"x"]), BadQueueName),
        (lambda calls: calls.put(b"work", [b"x" * 11]), RequestError),
        (lambda calls: calls.put(b"work", [b"x"], 1 << 31), RequestError),
    ],
)
def test_request_that_cannot_be_encoded_makes_no_connection(
    time: Time, make_call: Callable[[ThriftCalls], Any], error: type[Exception]
) -> None:
    with scripted() as server, patient(server.address, time, max_item_bytes=10) as asking, pytest.raises(error):
        asking.ask(make_call)  # a server without a script would fail
    assert time.pauses_s == []


def test_ask_once_does_not_retry_and_names_the_server(time: Time) -> None:
    with scripted(refusal(1), silence(2)) as server, patient(server.address, time) as asking:
        failures: list[type[ClientFailure]] = [ServerError, ConnectionFailed]
        for failure in failures:
            with pytest.raises(failure, match=f"^{server.address}: "):
                asking.ask_once(version)
    assert time.pauses_s == []


def test_interrupted_attempt_closes_its_connection(time: Time) -> None:
    def interrupted(pause_s: float) -> None:
        raise KeyboardInterrupt

    time.sleep = interrupted  # type: ignore[method-assign]
    with scripted(silence(1), talk(answer(2))) as server, patient(server.address, time) as asking:
        with pytest.raises(KeyboardInterrupt):
            asking.ask(version)
        assert asking.ask(version) == "1.0"


def test_closed_server_can_be_used_again(time: Time) -> None:
    with scripted(talk_and_stay(answer(1)), talk(answer(2))) as server:
        asking = patient(server.address, time)
        assert asking.ask(version) == "1.0"
        asking.close()
        assert asking.ask(version) == "1.0"
        asking.close()


def test_name_is_the_address_with_the_thrift_port(time: Time) -> None:
    assert str(patient("mq1", time)) == "mq1:2229"
    assert str(patient("[::1]:22", time)) == "[::1]:22"


def test_untrusted_tls_server_fails(time: Time, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = TlsOptions(authority.ca_file, server_name=HOST)
    tls = served_by(authority, "other.example")
    with (
        pytest.raises(ssl.SSLError),  # at the end of the server
        scripted(refused, tls=tls) as server,
        patient(server.address, time, 0, tls=options) as asking,
        pytest.raises(CannotConnect, match="Hostname mismatch"),
    ):
        asking.ask(version)


@pytest.mark.parametrize(("server", "timeout_s"), [("a b", 1.0), ("mq1:0", 1.0), ("mq1", 0.0), ("mq1", float("inf"))])
def test_constructor_rejects_invalid_arguments(server: str, timeout_s: float) -> None:
    with pytest.raises(ValueError):
        RetryingServer(server, timeout_s=timeout_s)
