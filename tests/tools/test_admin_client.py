"""What `kestrel-cli top` asks: an admin port with TLS, one that answers nonsense, one that never stops answering."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestrel.tls import TlsOptions
from kestrel.tools.top.admin_client import AdminClient, AdminFailed
from tests.child import join
from tests.client.certificates import Authority
from tests.server.running import PATIENCE_S, Processes
from tests.tools.tool_processes import ENVIRONMENT, command

CONFIG = 'queuePath = "queues"\n'
NAME = "mq.example"


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Where a server of our own is that answers one client so."""
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


def test_a_server_with_tls_is_asked_by_its_name_with_a_certificate(processes: Processes, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign(NAME)
    endpoint = f"mtls:0:interface=127.0.0.1:certKey={certificate}:privateKey={key}:caCerts={authority.ca_file}"
    server = processes.serve(CONFIG, "--admin", endpoint)
    with server.connect() as client:
        client.put(b"work", b"a")

    def top(*arguments: str) -> tuple[int, str]:
        url = f"https://127.0.0.1:{server.port_of('admin')}"
        done = subprocess.run(
            command("cli", "top", "--once", "--interval", "50ms", "--admin", url, *arguments),
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stdout + done.stderr

    ours = ("--ca", authority.ca_file, "--cert", certificate, "--key", key)
    status, said = top(*ours, "--server-name", NAME)
    assert (status, "work" in said) == (0, True)
    status, said = top(*ours, "--server-name", "other.example")
    assert status != 0
    assert "certificate" in said
    status, said = top("--ca", authority.ca_file, "--server-name", NAME)
    assert status != 0
    assert "Traceback" not in said


def test_what_is_no_http_is_said() -> None:
    with answering(lambda client: client.sendall(b"ERROR\r\n")) as url:
        assert failure(url) == "its response is not HTTP"


def test_what_is_no_overview_is_said() -> None:
    with answering(lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")) as url:
        assert failure(url)


def test_an_answer_that_breaks_off_is_none() -> None:
    with answering(lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")) as url:
        assert failure(url) == "it disconnected in the middle of its response"


def test_a_refusal_is_told_in_the_servers_words() -> None:
    body = b'{"error":"mq is not a name of this server"}'
    reply = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with answering(lambda client: client.sendall(reply)) as url:
        assert failure(url) == "it responds with 403: mq is not a name of this server"


def test_an_answer_that_never_ends_is_given_up() -> None:
    def endless(client: socket.socket) -> None:
        try:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 65536)
            while True:
                client.sendall(b" " * 65536)
        except OSError:
            pass  # it was given up

    with answering(endless) as url:
        assert failure(url) == "its response is longer than 16 MiB"


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    hours = iter(range(0, 1_000_000, 3600))
    with answering(lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n")) as url:
        assert failure(url, lambda: next(hours)) == f"no answer within {PATIENCE_S:g} s"
