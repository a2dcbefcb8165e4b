"""A real ZooKeeper for tests: the one of PySpark, in its own process, on a port of 127.0.0.1."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from kazoo.client import KazooClient

from kestrel.cluster.uri import parse_hosts
from kestrel.cluster.zookeeper import zookeeper_client
from tests.child import PATIENCE_S, Child
from tests.client.certificates import Authority
from tests.server.running import eventually, own_port

TICK_S: Final = 0.1
SESSION_S: Final = PATIENCE_S
"""Session timeout of `ZooKeeper.client`, long enough for a pause of a busy machine."""

_JAVA: Final = (
    *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    *("-Dlog4j2.disableJmx=true", "-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.forceSync=no"),
    "-Dzookeeper.extendedTypesEnabled=false",
)
_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"


class ZooKeeper:
    """A ZooKeeper server that keeps its port and data when it is killed and started again."""

    def __init__(self, folder: Path, port: int, settings: Mapping[str, object] | None = None) -> None:
        self.port = port
        self._folder = folder
        self._config = folder / "zoo.cfg"
        self._log = folder / "zookeeper.log"
        self._process: Child[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        said = {
            "dataDir": folder / "data",
            "tickTime": round(TICK_S * 1000),
            "maxSessionTimeout": 60_000,
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            **(settings or {}),
        }
        self._config.write_text("".join(f"{name}={value}\n" for name, value in said.items() if value is not None))

    @property
    def hosts(self) -> str:
        """The address, as ZooKeeper's clients get it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start the process. Return when it answers."""
        java = shutil.which("java")
        assert java is not None, "ZooKeeper wants Java 17 or later (Debian: apt-get install default-jre-headless)"
        spark = importlib.util.find_spec("pyspark")
        assert spark is not None and spark.origin is not None
        jars = Path(spark.origin).parent / "jars"
        with self._log.open("ab") as log:
            self._process = Child(
                [java, *_JAVA, "-cp", f"{jars}/*", _MAIN, str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ},
            )
        eventually(self._answers, "ZooKeeper answers")
        return self

    def _answers(self) -> bool:
        """Return True if it serves. During its start it may answer that it does not serve yet, and leave the connection
        open.
        """
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(b"srvr")  # one of the commands that are allowed by default
            for line in connection.makefile("rb"):
                if b"Mode: standalone" in line or b"not currently serving requests" in line:
                    return b"Mode: standalone" in line
        return False

    def kill(self) -> None:
        """Kill the process, as a failing machine would. Its data stays, and `client` is a new one afterwards.

        The old session might end before a busy machine has started ZooKeeper again.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None
        self._close_client()

    def freeze(self) -> None:
        """Suspend the process: connections stay open, and get no replies."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def forget(self) -> None:
        """Delete all data of the stopped process."""
        assert self._process is None
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    @cached_property
    def client(self) -> Any:
        """A connected client, with which tests read and change nodes."""
        client = zookeeper_client(parse_hosts(self.hosts), SESSION_S)
        client.start(PATIENCE_S)
        return client

    def expire(self, client: Any) -> None:
        """End the session of a kazoo client: another client takes it over and ends it."""
        taker = KazooClient(self.hosts, timeout=10.0, client_id=client.client_id)
        taker.start()
        taker.stop()
        taker.close()

    def close(self) -> None:
        """Kill the process and close the client."""
        self.kill()

    def _close_client(self) -> None:
        client = self.__dict__.pop("client", None)
        if client is not None:
            client.stop()
            client.close()


def over_tls(authority: Authority, port: int) -> dict[str, object]:
    """Return the settings that also serve TLS on that port, with a certificate for 127.0.0.1."""
    certificate, key = (Path(path).read_bytes() for path in authority.sign("127.0.0.1"))
    store = authority.folder / "zookeeper.p12"
    password = "in a test"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"zookeeper",
            serialization.load_pem_private_key(key, None),  # type: ignore[arg-type]
            x509.load_pem_x509_certificate(certificate),
            None,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )
    return {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": store,
        "ssl.keyStore.password": password,
        "ssl.trustStore.location": authority.ca_file,
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "none",
    }


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[ZooKeeper]:
    """Yield a ZooKeeper for the time of a `with`."""
    with own_port() as port:
        zookeeper = ZooKeeper(folder, port)
        try:
            yield zookeeper.start()
        finally:
            zookeeper.close()
