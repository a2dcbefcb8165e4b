"""A program that runs a kestrel over a replicated PostgreSQL on this machine: etcd, three nodes of Patroni, one server.

    python -m examples.replicated.run
    python -m examples.replicated.run --nodes 2 --away 30

The system picks all ports. All files are below var/replicated, and the next run uses them again. Ctrl-C stops all
programs in order. A program that ends in any other way is restarted after a pause, as systemd would do.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from examples.cluster.run import LOCAL, PYTHON, Program, look_after, stopped_by_signals, tell
from kestrel.testing.postgres import as_unprivileged, kill_server, make_data_folder, programs

HERE: Final = Path(__file__).resolve().parent

ANSWER_S: Final = 2.0
"""Time limit for a reply of Patroni."""

FIRST_START_S: Final = 180.0
"""Time limit for the creation and the copies of a database on a busy machine."""

# For a database of this machine alone. Other machines need certificates or passwords in place of `trust`.
HBA: Final = ("local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust")

# So small, three databases fit on one machine. A kill leaves files of other kinds of shared memory behind.
PARAMETERS: Final = {"shared_buffers": "32MB", "dynamic_shared_memory_type": "mmap"}


def free_ports(stack: ExitStack, count: int) -> list[int]:
    """Return ports that the system gives to no other program until the stack is closed. Servers may listen there."""
    ports = []
    for _ in range(count):
        holder = stack.enter_context(socket.socket())
        # Servers set it too. Two sockets may then have the port, as long as only one of them listens.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOCAL, 0))
        ports.append(holder.getsockname()[1])
    return ports


def installed(name: str, package: str) -> str:
    """Return the path of a program. Exit with an error if it is missing."""
    found = shutil.which(name)
    if found is None:
        sys.exit(f"{name} is not installed (Debian: apt-get install --no-install-recommends {package})")
    return found


class Node(Program):
    """One machine of the database: Patroni, and the PostgreSQL that it controls."""

    def __init__(self, name: str, folder: Path, etcd_port: int, port: int, api_port: int, ttl_s: int) -> None:
        found = programs()
        if found is None:
            sys.exit("PostgreSQL is not installed (Debian: apt-get install --no-install-recommends postgresql)")
        patroni = installed("patroni", "patroni")
        self.port = port
        self.data = folder / "data"
        self._api = f"http://{LOCAL}:{api_port}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            make_data_folder(folder)
        config = folder / "patroni.json"
        # JSON is also YAML, which Patroni reads.
        config.write_text(json.dumps(self._config(name, folder, found, etcd_port, api_port, ttl_s), indent=2))
        config.chmod(0o644)
        super().__init__(name, folder, *as_unprivileged([patroni, config]))

    def _config(
        self, name: str, folder: Path, found: Path, etcd_port: int, api_port: int, ttl_s: int
    ) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((HERE / "patroni.json").read_text())
        config |= {
            "name": name,
            "etcd3": {"host": f"{LOCAL}:{etcd_port}"},
            "restapi": {"listen": f"{LOCAL}:{api_port}", "connect_address": f"{LOCAL}:{api_port}"},
        }
        config["bootstrap"]["dcs"] |= {"ttl": ttl_s, "loop_wait": ttl_s // 4, "retry_timeout": ttl_s // 4}
        config["postgresql"] |= {
            "listen": f"{LOCAL}:{self.port}",
            "connect_address": f"{LOCAL}:{self.port}",
            "data_dir": str(self.data),
            "bin_dir": str(found),
            "pgpass": str(folder / "pgpass"),
            "parameters": {"unix_socket_directories": str(folder), **PARAMETERS},
            "pg_hba": HBA,
            "authentication": {"superuser": {"username": "postgres"}, "replication": {"username": "replicator"}},
        }
        return config

    def _answers(self, path: str) -> bool:
        """Return True if Patroni answers a health check with 200."""
        try:
            with urllib.request.urlopen(self._api + path, timeout=ANSWER_S) as response:
                return int(response.status) == HTTPStatus.OK
        except (OSError, urllib.error.HTTPError):
            return False

    def is_primary(self) -> bool:
        """Return True if this node accepts writes."""
        return self._answers("/primary")

    def is_replica(self) -> bool:
        """Return True if this node is a running standby."""
        return self._answers("/replica")

    def is_synchronous(self) -> bool:
        """Return True if this node is a standby that has each acknowledged commit."""
        return self._answers("/synchronous")

    def kill(self) -> None:
        """Kill Patroni and all processes of its PostgreSQL, as if the machine had failed."""
        self.process.kill()
        self.process.wait()
        with suppress(FileNotFoundError):
            kill_server(self.data)

    def __str__(self) -> str:
        return f"{self.name} (process {self.process.pid}): PostgreSQL {LOCAL}:{self.port}, Patroni {self._api}/"


class ReplicatedDatabase:
    """Nodes of a PostgreSQL, and the etcd that decides which of them is the primary.

    A standby takes over when the primary is silent for `ttl_s` seconds. The stack stops all programs and returns the
    ports.
    """

    def __init__(self, stack: ExitStack, folder: Path, count: int, ttl_s: int) -> None:
        etcd_port, peer_port, *ports = free_ports(stack, 2 + 2 * count)
        self.etcd = start_etcd(folder / "etcd", etcd_port, peer_port)
        stack.callback(self.etcd.stop)
        self.etcd.ready(lambda: "ready to serve client requests" in self.etcd.said())
        self.nodes: list[Node] = []
        for number in range(count):
            name = f"node{number + 1}"
            node = Node(name, folder / name, etcd_port, ports[2 * number], ports[2 * number + 1], ttl_s)
            stack.callback(node.stop)
            self.nodes.append(node)
        # One node creates the database, and the others copy it.
        self.nodes[0].ready(self.is_replicated, FIRST_START_S)

    def is_replicated(self) -> bool:
        """Return True if there are a primary and a synchronous standby."""
        return any(map(Node.is_primary, self.nodes)) and any(map(Node.is_synchronous, self.nodes))

    def primary(self) -> Node | None:
        """Return the node that accepts writes, or None."""
        return next(filter(Node.is_primary, self.nodes), None)

    @property
    def conninfo(self) -> str:
        """Connection string that names all nodes."""
        hosts = ",".join(LOCAL for _ in self.nodes)
        return f"host={hosts} port={','.join(str(node.port) for node in self.nodes)} user=postgres dbname=postgres"


def start_etcd(folder: Path, port: int, peer_port: int) -> Program:
    """Start an etcd with one member."""
    etcd = installed("etcd", "etcd-server")
    folder.mkdir(parents=True, exist_ok=True)
    client, peer = f"http://{LOCAL}:{port}", f"http://{LOCAL}:{peer_port}"
    return Program(
        "etcd", folder, etcd, "--name=etcd", "--data-dir=data",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=etcd={peer}",
    )  # fmt: skip


def start_kestrel(stack: ExitStack, folder: Path, conninfo: str) -> Program:
    """Start a server over the database, and print its addresses."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memcache", "text", "thrift", "admin")
    ports = dict(zip(names, free_ports(stack, len(names)), strict=True))
    endpoints = [word for name in names for word in (f"--{name}", f"tcp:{ports[name]}:interface={LOCAL}")]
    twistd = PYTHON.with_name("twistd")
    command = ("--nodaemon", "--pidfile=", "kestrel", "--storage", f"postgres:{conninfo}", *endpoints)
    server = Program("kestrel", folder, twistd, *command)
    stack.callback(server.stop)
    server.ready(lambda: " serves " in server.said())
    cli = PYTHON.with_name("kestrel-cli")
    tell(f"""
{server.name} (process {server.process.pid}): memcache {LOCAL}:{ports["memcache"]}, admin http://{LOCAL}:{ports["admin"]}/
In another shell:
    {cli} --server {LOCAL}:{ports["memcache"]} put work hello
    {cli} --server {LOCAL}:{ports["memcache"]} get work
    psql '{conninfo} target_session_attrs=read-write' -c 'TABLE kestrel.queues'
Ctrl-C stops everything.""")
    return server


def check_can_enter(folder: Path) -> None:
    """Exit with an error if the user of PostgreSQL cannot enter the folder."""
    if subprocess.run(as_unprivileged(["test", "-x", folder]), check=False).returncode:
        sys.exit(f"the user of PostgreSQL may not enter {folder}: choose another --folder")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all programs until a signal interrupts this one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="number of PostgreSQL servers (3)")
    parser.add_argument(
        "--folder", type=Path, default=Path("var/replicated"), help="folder for all files (var/replicated)"
    )
    parser.add_argument(
        "--away", type=float, default=5.0, metavar="SECONDS", help="pause before a program is restarted (5)"
    )
    parser.add_argument(
        "--ttl", type=int, default=20, metavar="SECONDS", help="time until a silent primary is replaced (20)"
    )
    options = parser.parse_args(arguments)
    if options.nodes < 2 or options.ttl < 8:
        parser.error("--nodes must be at least 2, and --ttl at least 8")
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    check_can_enter(folder)
    with stopped_by_signals(), ExitStack() as stack:
        tell("etcd and the nodes start; the first start takes about half a minute")
        database = ReplicatedDatabase(stack, folder, options.nodes, options.ttl)
        for node in database.nodes:
            tell(f"{node}{', primary' if node.is_primary() else ''}")
        kestrel = start_kestrel(stack, folder / "kestrel", database.conninfo)
        look_after([database.etcd, *database.nodes, kestrel], options.away)


if __name__ == "__main__":
    main()
