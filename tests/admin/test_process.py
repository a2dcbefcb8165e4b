"""The admin port of a real server, over sockets."""

from __future__ import annotations

import json
import socket
import ssl
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.server.endpoints import endpoints_to_serve
from tests.client.certificates import Authority, subject
from tests.server.running import ANY_PORT, PATIENCE_S, Processes, Server


class UnixConnection(HTTPConnection):
    """An HTTP connection to a socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


def serve(processes: Processes, config: str = "") -> Server:
    return processes.serve(f'queuePath = "{processes.folder}/queues"\n{config}', "--admin", ANY_PORT)


def asked(connection: HTTPConnection, method: str, path: str) -> tuple[int, Any]:
    """Return the status and the parsed JSON of a response."""
    connection.request(method, path)
    response: HTTPResponse = connection.getresponse()
    return response.status, json.loads(response.read())


def to(server: Server) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", server.port_of("admin"), timeout=PATIENCE_S)


def test_a_server_is_inspected_reloaded_and_stopped(processes: Processes) -> None:
    server = serve(processes)
    config = processes.folder / "kestrel.toml"
    good = config.read_text()
    with server.connect() as client:
        client.put(b"work", *[b"secret"] * 20)
        assert client.get(b"work") == b"secret"
    admin = to(server)
    status, told = asked(admin, "GET", "/api/overview")
    assert (status, told["server"]["status"], told["server"]["name"]) == (200, "Up", socket.gethostname())
    assert told["server"]["storage"].startswith(f"journal:{processes.folder}/queues")
    assert [row[:3] for row in told["queues"]] == [["work", 19, 19 * 6]]
    assert asked(admin, "GET", "/health")[1]["ready"] is True

    config.write_text(f"{good}[[queues]]\nname = 'work'\nmaxItem = 3\n")
    status, told = asked(admin, "POST", "/api/reload")
    assert status in (409, 503)
    assert "maxItem" in told["error"]
    config.write_text(f"{good}[[queues]]\nname = 'work'\nmaxItems = 3\n")
    assert asked(admin, "POST", "/api/reload") == (200, {"done": "the configuration was read again"})
    assert asked(admin, "GET", "/api/queue/work")[1]["settings"]["maxItems"] == "3"

    assert asked(admin, "POST", "/api/queue/work/flush") == (200, {"done": "19 items of work were flushed"})
    assert asked(admin, "POST", "/shutdown.json") == (200, {"done": "the server is shutting down"})
    assert server.exit_status() == 0
    log = server.logged()
    assert "By the admin port: 19 items of work were flushed" in log
    assert "By the admin port: the server is shutting down" in log
    assert "secret" not in log
    assert "Traceback" not in log


def test_connections_have_the_traffic_that_the_kernel_counts(processes: Processes) -> None:
    server = serve(processes)
    with server.connect() as client:
        client.put(b"work", b"x" * 1000)
        told = asked(to(server), "GET", "/api/connections")[1]
        (row,) = (dict(zip(told["columns"], each, strict=True)) for each in told["connections"])
        assert row["address"].startswith("127.0.0.1:")
        assert (row["protocol"], row["requests"], row["unsent_bytes"]) == ("memcache", 1, 0)
        assert 1000 < row["bytes_in"] < 1100
        assert 0 <= row["bytes_out"] <= len(b"STORED\r\n")
        assert row["silent_msec"] >= 0
    server.stop()


def test_clients_of_the_trusted_socket_are_administrators(processes: Processes) -> None:
    path = processes.folder / "admin.sock"
    processes.arguments = ("--trust", f"admin=unix:{path}:mode=600")
    server = serve(processes, "administrators = []")
    assert asked(to(server), "POST", "/api/status/ReadOnly") == (403, {"error": "only an administrator may do that"})
    trusted = UnixConnection(path)
    assert asked(trusted, "POST", "/api/status/ReadOnly") == (200, {"done": "the status is ReadOnly"})
    assert asked(trusted, "GET", "/api/overview")[1]["server"]["may_administer"] is True
    assert asked(to(server), "GET", "/api/overview")[1]["server"]["may_administer"] is False
    server.stop()
    assert "only an administrator may do that" in server.logged()


def test_administrators_show_a_certificate(processes: Processes) -> None:
    folders = [processes.folder / name for name in ("ours", "theirs")]
    for folder in folders:
        folder.mkdir()
    authority, strangers = map(Authority, folders)
    cert_file, key_file = authority.sign("localhost")
    endpoint = f"mtls:0:interface=127.0.0.1:certKey={cert_file}:privateKey={key_file}:caCerts={authority.ca_file}"
    config = f'queuePath = "{processes.folder}/queues"\nadministrators = ["{subject("chief")}"]'
    server = processes.serve(config, "--admin", endpoint)

    def with_certificate(signer: Authority, name: str) -> HTTPConnection:
        context = ssl.create_default_context(cafile=authority.ca_file)
        context.load_cert_chain(*signer.sign(name))
        return HTTPSConnection("localhost", server.port_of("admin"), timeout=PATIENCE_S, context=context)

    chief, other = with_certificate(authority, "chief"), with_certificate(authority, "other")
    assert asked(chief, "POST", "/api/status/ReadOnly") == (200, {"done": "the status is ReadOnly"})
    assert asked(chief, "GET", "/api/overview")[1]["server"]["may_administer"] is True
    assert asked(other, "POST", "/api/status/Up") == (403, {"error": "only an administrator may do that"})
    assert asked(other, "GET", "/api/overview")[1]["server"]["may_administer"] is False
    with pytest.raises((OSError, HTTPException)):
        asked(with_certificate(strangers, "chief"), "POST", "/api/status/Up")
    assert asked(chief, "GET", "/health")[1]["status"] == "ReadOnly"
    server.stop()
    log = server.logged()
    assert f"({subject('other')!r}): admin: only an administrator may do that" in log
    assert "(no name): admin: TLS" in log
    assert "Traceback" not in log


def test_a_start_fails_without_a_requested_admin_port(processes: Processes) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        endpoint = f"tcp:{other.getsockname()[1]}:interface=127.0.0.1"
        server = processes.start(f'queuePath = "{processes.folder}/queues"', "--admin", endpoint)
        assert server.exit_status() == 69
        assert f"cannot listen on {endpoint}" in server.stderr() + server.logged()


def test_the_admin_port_listens_on_localhost_by_default() -> None:
    (endpoint,) = endpoints_to_serve(Config(), {})["admin"]
    assert endpoint.startswith("tcp:2223:interface=127.0.0.1:")
    assert endpoints_to_serve(loads('[admin]\nhttpPort = "none"'), {})["admin"] == []
