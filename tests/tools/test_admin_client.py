"""The client of the admin port in `kestrel-cli top`: TLS, and unusable responses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestrel.tls import TlsOptions
from kestrel.tools.cli.admin_client import AdminClient, AdminFailed
from tests.child import join
from tests.client.certificates import Authority
from tests.server.running import PATIENCE_S, Processes
from tests.tools.tool_processes import run

CONFIG = 'queuePath = "queues"\n'
NAME = "mq.example"


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Provide the URL of a server that calls `answer` for one client."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.settimeout(PATIENCE_S)
                client.recv(65536)
                answer(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            join(thread)


def failure(url: str, seconds: Callable[[], float] = time.monotonic) -> str:
    with pytest.raises(AdminFailed) as failed:
        AdminClient(url, TlsOptions(), PATIENCE_S, seconds).overview()
    return str(failed.value)


def test_tls_server_is_verified_and_gets_the_certificate(processes: Processes, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign(NAME)
    endpoint = f"mtls:0:interface=127.0.0.1:certKey={certificate}:privateKey={key}:caCerts={authority.ca_file}"
    server = processes.serve(CONFIG, "--admin", endpoint)
    with server.connect() as client:
        client.put(b"work", b"a")

    def top(*arguments: str) -> tuple[int, str]:
        url = f"https://127.0.0.1:{server.port_of('admin')}"
        done = run("cli", "top", "--once", "--interval", "50ms", "--admin", url, *arguments, text=True)
        return done.returncode, done.stdout + done.stderr

    ours = ("--ca", authority.ca_file, "--cert", certificate, "--key", key)
    status, said = top(*ours, "--server-name", NAME)
    assert (status, "work" in said) == (0, True)
    status, said = top(*ours, "--server-name", "other.example")
    assert status != 0
    assert "certificate" in said
    status, said = top("--ca", authority.ca_file, "--server-name", NAME)
    assert status != 0
    assert said.endswith(": this server requires a client certificate: pass --cert and --key\n")
    assert said.count("\n") == 1


REFUSAL = b'{"error":"mq is not a name of this server"}'


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (b"ERROR\r\n", "its response is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "its response is not an overview of queues"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "it disconnected in the middle of its response"),
        (
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL),
            "it responds with 403: mq is not a name of this server",
        ),
    ],
    ids=["not HTTP", "not an overview", "incomplete", "refusal"],
)
def test_unusable_response_is_reported(response: bytes, says: str) -> None:
    with answering(lambda client: client.sendall(response)) as url:
        assert failure(url) == says


def test_endless_response_is_limited() -> None:
    def endless(client: socket.socket) -> None:
        try:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 65536)
            while True:
                client.sendall(b" " * 65536)
        except OSError:
            pass  # the client closed the connection

    with answering(endless) as url:
        assert failure(url) == "its response is longer than 16 MiB"


def test_slow_response_times_out() -> None:
    hours = iter(range(0, 1_000_000, 3600))
    with answering(lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n")) as url:
        assert failure(url, lambda: next(hours)) == f"no answer within {PATIENCE_S:g} s"
