"""A program that runs a cluster on this machine: a ZooKeeper, and servers that announce themselves in it.

    python examples/cluster/run.py
    python examples/cluster/run.py --servers 5 --base-port 23000 --zookeeper zk1:2181,zk2:2181

All files are below var/cluster, and the next run uses them again. Ctrl-C stops all programs in order. A server that
ends in any other way is restarted after a pause, as systemd would do.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final, NoReturn

from kestrel.cluster.member import Member
from kestrel.cluster.uri import KazooMissing, ServerSetUri, parse_server_set, require_kazoo

if TYPE_CHECKING:
    # This module imports kazoo, which is in an extra.
    from kestrel.cluster.follower import Members

HERE: Final = Path(__file__).resolve().parent
PYTHON: Final = Path(sys.executable)
LOCAL: Final = "127.0.0.1"

PORTS_EACH: Final = 10
PORTS: Final = {"memcache": 0, "thrift": 1, "text": 2, "admin": 3}
"""Offsets of a server's ports from its first port."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals of Ctrl-C, of `kill`, and of a terminal that closes."""

PATIENCE_S: Final = 60.0
ANSWER_S: Final = 5.0
"""Time limit for the reply of a ZooKeeper that was not started here."""
DEBIAN: Final = Path("/usr/share/java/zookeeper.jar")
"""ZooKeeper of Debian. The manifest of this jar names the other jars."""
ZOOKEEPER: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-Dlog4j2.disableJmx=true", "-Dzookeeper.jmx.log4j.disable=true")
ZOOKEEPER_CONFIG: Final = """\
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
"""


class Program:
    """A program that can be restarted, with its output in the file `log`."""

    def __init__(self, name: str, folder: Path, *command: str | Path) -> None:
        self.name = name
        self.log = folder / "log"
        self._folder = folder
        self._command = command
        self._begins_at = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._begins_at = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                # Keeps Ctrl-C of this terminal away from the program, so that programs stop in order.
                start_new_session=True,
            )

    def start_again(self) -> None:
        """Start the program again. It must have ended."""
        self.process = self._start()

    def said(self) -> str:
        """Return the output since the last start."""
        with self.log.open("rb") as log:
            log.seek(self._begins_at)
            return log.read().decode(errors="replace")

    def ready(self, is_ready: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Wait until `is_ready` returns true. Exit with an error if the program ends or takes too long."""
        ends_s = time.monotonic() + patience_s
        while not is_ready():
            if self.process.poll() is not None or time.monotonic() > ends_s:
                last = "".join(f"\n    {line}" for line in self.said().splitlines()[-5:])
                sys.exit(f"{self.name} did not start; the end of {self.log}:{last}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Terminate the program, and kill it after 30 seconds."""
        if self.process.poll() is not None:
            tell(f"{self.name} was not running")
            return
        self.process.terminate()
        try:
            self.process.wait(30)
            tell(f"{self.name} has stopped")
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            tell(f"{self.name} did not stop and was killed")


class Server(Program):
    """A kestrel server of the cluster."""

    def __init__(self, number: int, folder: Path, base_port: int, uri: ServerSetUri) -> None:
        self.ports = {name: base_port + (number - 1) * PORTS_EACH + port for name, port in PORTS.items()}
        template = Template((HERE / "kestrel.template.toml").read_text())
        folder.mkdir(parents=True, exist_ok=True)
        hosts = ",".join(map(str, uri.hosts))
        (folder / "kestrel.toml").write_text(template.substitute(self.ports, hosts=hosts, path=uri.path))
        for port in self.ports.values():
            check_free(port, "choose another --base-port")
        twistd = PYTHON.with_name("twistd")
        command = (twistd, "--nodaemon", "--pidfile=", "kestrel", "--config", "kestrel.toml")
        super().__init__(f"server {number}", folder, *command)
        tell(
            f"{self.name} starts (process {self.process.pid}): memcache {LOCAL}:{self.ports['memcache']}, "
            f"thrift {self.ports['thrift']}, text {self.ports['text']}, admin http://{LOCAL}:{self.ports['admin']}/"
        )

    def has_joined(self) -> bool:
        """Return True if the server has joined the server sets of its status."""
        return re.search(r"this server is now in ", self.said()) is not None


def tell(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def check_free(port: int, way_out: str) -> None:
    """Exit with an error if the port is in use. `way_out` says what to do."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            probe.bind((LOCAL, port))
            probe.listen()
        except OSError as error:
            sys.exit(f"port {port} of {LOCAL} cannot be listened on ({error.strerror}): {way_out}")


def class_path() -> str:
    """Return the Java class path of ZooKeeper. Exit with an error if ZooKeeper is not installed."""
    if DEBIAN.exists():
        return f"{DEBIAN}:{DEBIAN.with_name('slf4j-simple.jar')}"
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.origin is not None:
        jars = Path(spark.origin).parent / "jars"
        if any(jars.glob("zookeeper-*.jar")):
            return f"{jars}/*"
    sys.exit(
        "ZooKeeper is not installed. Name a running one (--zookeeper HOST:PORT), or install it from Debian "
        "(apt-get install libzookeeper-java default-jre-headless) or with PySpark (pip install 'kestrel-mq[spark]')."
    )


def start_zookeeper(folder: Path, port: int) -> Program:
    """Start a ZooKeeper for this cluster."""
    classes = class_path()
    java = shutil.which("java")
    if java is None:
        sys.exit("ZooKeeper needs Java (Debian: apt-get install default-jre-headless), or use --zookeeper HOST:PORT.")
    check_free(port, f"for a ZooKeeper use --zookeeper {LOCAL}:{port}; otherwise choose another --zookeeper-port")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "zoo.cfg"
    config.write_text(ZOOKEEPER_CONFIG.format(folder=folder, port=port))
    tell(f"ZooKeeper starts from {classes.partition(':')[0]}")
    return Program("ZooKeeper", folder, java, *JAVA_OPTIONS, "-cp", classes, ZOOKEEPER, config)


class Watch:
    """A listener that prints the server sets after each change."""

    def __init__(self) -> None:
        self.servers: Mapping[int, Server] = {}
        """Servers of this cluster by memcache port. Other members are printed by address."""

    def changed(self, members: Members) -> None:
        """Print the members of both sets. Runs in a thread."""
        if members.reads or members.writes:
            tell(f"gets go to {self._listed(members.reads)}; puts go to {self._listed(members.writes)}")

    def _listed(self, members: tuple[Member, ...]) -> str:
        return ", ".join(sorted(self._name(member) for member in members)) or "no server"

    def _name(self, member: Member) -> str:
        server = self.servers.get(member.service.port) if member.service.host == LOCAL else None
        return str(member.service) if server is None else server.name


def look_after(servers: Sequence[Program], away_s: float) -> NoReturn:
    """Restart each program `away_s` seconds after it has ended, for ever."""
    ended_s: dict[Program, float] = {}
    while True:
        time.sleep(0.1)
        for server in servers:
            status = server.process.poll()
            if status is None:
                continue
            if server not in ended_s:
                ended_s[server] = time.monotonic()
                how = f"by signal {-status}" if status < 0 else f"with status {status}"
                tell(f"{server.name} has ended {how} and will be restarted in {away_s:g} s")
            elif time.monotonic() - ended_s[server] > away_s:
                del ended_s[server]
                server.start_again()
                tell(f"{server.name} restarts (process {server.process.pid})")


def how_to_use(uri: ServerSetUri, servers: list[Server]) -> str:
    """Return a text with commands for trying the cluster."""
    cli = "kestrel-cli" if shutil.which("kestrel-cli") else PYTHON.with_name("kestrel-cli")
    first = f"{LOCAL}:{servers[0].ports['memcache']}"
    return f"""
In another shell:
    {cli} --server {uri} servers
    {cli} --server {uri} put work hello
    {cli} --server {uri} get work
    {cli} --server {uri} status
    {cli} --server {first} status ReadOnly      # the sets printed here change
Ctrl-C stops everything."""


def options() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description="A cluster on this machine: a ZooKeeper, and servers in it.")
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="number of servers (3)")
    parser.add_argument(
        "--base-port", type=int, default=22200, metavar="PORT",
        help=f"memcache port of the first server (22200); each server uses {PORTS_EACH} ports: "
        + ", ".join(f"{name} +{port}" for name, port in PORTS.items()),
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, default=Path("var/cluster"), help="folder for all files (var/cluster)")
    parser.add_argument("--zookeeper", metavar="HOST:PORT,...", help="use a running ZooKeeper instead of starting one")
    parser.add_argument("--zookeeper-port", type=int, default=2181, metavar="PORT", help="port of a new ZooKeeper")
    parser.add_argument(
        "--away", type=float, default=5.0, metavar="SECONDS", help="pause before a server is restarted (5)"
    )
    parser.add_argument("--path", default="/services/kestrel", help="path of the server sets (/services/kestrel)")
    arguments = parser.parse_args()
    last = arguments.base_port + arguments.servers * PORTS_EACH
    if arguments.servers < 1 or not 0 < arguments.base_port < last <= 65536:
        parser.error("--servers must be at least 1, and all ports must be between 1 and 65535")
    try:
        hosts = arguments.zookeeper or f"{LOCAL}:{arguments.zookeeper_port}"
        arguments.uri = parse_server_set(f"zk://{hosts}{arguments.path}")
        require_kazoo()
    except (ValueError, KazooMissing) as error:
        parser.error(str(error))
    if arguments.uri.credentials or not re.fullmatch(r"[\w./-]+", arguments.uri.path):
        parser.error("--zookeeper takes only hosts and ports; --path takes only letters, digits and . _ - /")
    return arguments


def run(stack: ExitStack, arguments: argparse.Namespace) -> NoReturn:
    """Start all programs and supervise them. The stack stops them at the end."""
    from kestrel.cluster.follower import Follower, ZooKeeperUnavailable

    folder = arguments.folder.absolute()
    uri: ServerSetUri = arguments.uri
    watch = Watch()
    follower = Follower(uri, watch.changed)
    if arguments.zookeeper is None:
        zookeeper = start_zookeeper(folder / "zookeeper", arguments.zookeeper_port)
        stack.callback(zookeeper.stop)
        follower.start()
        zookeeper.ready(lambda: follower.members is not None)
    else:
        try:
            follower.start().wait(ANSWER_S)
        except ZooKeeperUnavailable as error:
            sys.exit(f"the server sets cannot be read from {error}")
    tell(f"ZooKeeper is ready; {uri} names the server sets")
    servers: list[Server] = []
    for number in range(1, arguments.servers + 1):
        server = Server(number, folder / f"server-{number}", arguments.base_port, uri)
        stack.callback(server.stop)
        servers.append(server)
        watch.servers = {each.ports["memcache"]: each for each in servers}
        server.ready(server.has_joined)
    stack.callback(follower.close)
    tell(how_to_use(uri, servers))
    look_after(servers, arguments.away)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Run the block until a signal of `SIGNALS` interrupts it. Say at the end that everything has stopped."""

    def interrupted(number: int, frame: object) -> NoReturn:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # shutdown has begun
        raise KeyboardInterrupt

    for each in SIGNALS:
        signal.signal(each, interrupted)
    try:
        yield
    except KeyboardInterrupt:
        tell("everything has stopped")


def main() -> None:
    """Run the cluster until a signal interrupts it."""
    arguments = options()
    with stopped_by_signals(), ExitStack() as stack:
        run(stack, arguments)


if __name__ == "__main__":
    main()
