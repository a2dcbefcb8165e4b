"""tap-configs/tls.toml, mtls.toml and hardened.toml, started as daemons by the commands in their comments.

The test replaces only the folders, the listen address and the ports.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import ssl
from pathlib import Path
from typing import Final

import pytest

from kestrel.client.blocking import BlockingClient
from kestrel.client.errors import ServerError
from kestrel.config.load import load
from kestrel.tls import TlsOptions
from tests.client.certificates import Authority, subject
from tests.server.any_port import endpoints_on_any_port
from tests.server.running import (
    PATIENCE_S,
    ROOT,
    TWISTD,
    Processes,
    eventually,
    is_serving_in,
    port_in,
)

HOST: Final = "localhost"
FOLDERS: Final = ("etc/kestrel", "run/kestrel", "var/spool/kestrel", "var/lib/kestrel", "var/log/kestrel")


def command_in(text: str, word: str) -> str:
    """Return the command of the comment that contains that word, with its continuation lines."""
    (block,) = [block for block in re.findall(r"(?:^#     .*\n)+", text, re.MULTILINE) if word in block]
    return block.replace("#     ", "")


class Configured:
    """A daemon with one of the files."""

    def __init__(self, processes: Processes, name: str) -> None:
        self.folder = processes.folder
        for folder in FOLDERS:
            (self.folder / folder).mkdir(parents=True)
        self.etc = self.folder / "etc" / "kestrel"
        self.authority = Authority(self.etc)
        self._sign("server", HOST)
        os.rename(self.authority.ca_file, self.etc / "clients.pem")
        self.ca_file = str(self.etc / "clients.pem")
        text = (ROOT / "tap-configs" / name).read_text()
        (self.etc / name).write_text(self._here(text))
        command = self._here(command_in(text, "twistd")).replace("twistd ", f"{shlex.quote(str(TWISTD))} ").rstrip()
        for protocol, endpoints in endpoints_on_any_port(load(self.etc / name)).items():
            for endpoint in endpoints:
                command += f" --{protocol} {shlex.quote(endpoint)}"
        self.started = processes.run("sh", "-ec", command)
        assert (self.started.returncode, self.started.stderr) == (0, "")
        eventually(lambda: is_serving_in(self.logged()), "the daemon serves")

    def _here(self, text: str) -> str:
        return re.sub(r"/(?=(etc|run|var)/)", f"{self.folder}/", text)

    def _sign(self, file: str, host: str) -> None:
        for made in self.authority.sign(host):
            os.rename(made, self.etc / f"{file}{Path(made).suffix}")

    def logged(self) -> str:
        log = self.folder / "var" / "log" / "kestrel" / "kestrel.log"
        return log.read_text() if log.exists() else ""

    def port(self, protocol: str) -> int:
        return port_in(self.logged(), protocol)

    def options(self, name: str | None = None) -> TlsOptions:
        return TlsOptions(self.ca_file, *(() if name is None else self.authority.sign(name)))

    def client(self, options: TlsOptions, protocol: str = "memcache") -> BlockingClient:
        address = f"{HOST}:{self.port(protocol)}"
        return BlockingClient(address, protocol=protocol, tls=options, timeout_s=PATIENCE_S)


@pytest.fixture
def tls(processes: Processes) -> Configured:
    return Configured(processes, "tls.toml")


@pytest.fixture
def mtls(processes: Processes) -> Configured:
    return Configured(processes, "mtls.toml")


@pytest.fixture
def hardened(processes: Processes) -> Configured:
    return Configured(processes, "hardened.toml")


def test_clients_are_served_over_tls_and_verify_the_server(tls: Configured) -> None:
    for protocol in ("memcache", "thrift"):
        with tls.client(tls.options(), protocol) as client:
            client.put(protocol, b"one")
            assert client.get(protocol) == b"one"
    context = ssl.create_default_context(cafile=tls.ca_file)
    port = tls.port("text")
    with (
        socket.create_connection((HOST, port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as client_of_text,
    ):
        client_of_text.sendall(b"put work:\none\n\n")
        assert client_of_text.recv(100) == b"+1\n"


def test_administrators_use_the_owners_socket_and_not_the_network(tls: Configured) -> None:
    with tls.client(tls.options()) as client, pytest.raises(ServerError, match="only an administrator"):
        client.flush("work")
    path = tls.folder / "run" / "kestrel" / "admin.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as owner:
        owner.settimeout(PATIENCE_S)
        owner.connect(str(path))
        owner.sendall(b"flush work\r\n")
        assert owner.recv(100) == b"END\r\n"


def test_certificate_has_the_rights_of_its_subject(mtls: Configured) -> None:
    for protocol in ("memcache", "thrift"):
        with (
            mtls.client(mtls.options("shop"), protocol) as shop,
            mtls.client(mtls.options("billing"), protocol) as billing,
            mtls.client(mtls.options("ops"), protocol) as ops,
        ):
            shop.put("orders", b"one")
            assert billing.get("orders") == b"one"
            with pytest.raises(ServerError, match="may not get from orders"):
                shop.get("orders")
            with pytest.raises(ServerError, match="may not put to orders"):
                billing.put("orders", b"two")
            with pytest.raises(ServerError, match="only an administrator"):
                shop.flush("orders")
            ops.flush("orders")


def test_hardened_server_serves_listed_clients_and_its_owner_administrates(hardened: Configured) -> None:
    with (
        hardened.client(hardened.options("shop")) as shop,
        hardened.client(hardened.options("billing")) as billing,
        hardened.client(hardened.options("ops")) as ops,
    ):
        shop.put("orders", b"one")
        assert billing.get("orders") == b"one"
        with pytest.raises(ServerError, match="may not put to others"):
            shop.put("others", b"one")
        with pytest.raises(ServerError, match="only an administrator"):
            ops.flush("orders")
    with socket.socket(socket.AF_UNIX) as owner:
        owner.settimeout(PATIENCE_S)
        owner.connect(str(hardened.folder / "run" / "kestrel" / "admin.sock"))
        owner.sendall(b"flush orders\r\n")
        assert owner.recv(100) == b"END\r\n"


@pytest.mark.needs("openssl")
def test_documented_command_shows_the_name_of_a_client(processes: Processes, authority: Authority) -> None:
    command = command_in((ROOT / "tap-configs" / "mtls.toml").read_text(), "openssl")
    certificate, _ = authority.sign("shop")
    done = processes.run("sh", "-ec", command.replace("/etc/kestrel/client.pem", certificate))
    assert done.stdout == f"subject={subject('shop')}\n"
