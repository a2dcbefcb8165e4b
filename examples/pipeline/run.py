"""A program that runs the whole pipeline on this machine: server, stream, producer and consumer.

    python examples/pipeline/run.py
    python examples/pipeline/run.py --master 'local-cluster[2,1,1024]'

Each run has its own folder under var/pipeline. At the end all programs are stopped.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kestrel.client.blocking import BlockingClient

HERE = Path(__file__).resolve().parent
PYTHON = Path(sys.executable)
PATIENCE_S = 180.0


class Program:
    """A running program with its output in a file."""

    def __init__(self, stack: ExitStack, folder: Path, name: str, *command: str | Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True
            )
        stack.callback(self.stop)

    def says(self, pattern: str) -> str:
        """Wait until the output matches `pattern`. Return the first group of the match."""
        ends_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends_s:
            if match := re.search(pattern, self.log.read_text(errors="replace")):
                return match[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit(f"the {self.name} did not start; see {self.log}")

    def stop(self) -> None:
        """Terminate the program and its child processes, and kill them after 20 seconds."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def main() -> int:
    """Run the pipeline and print the counts. Return the exit status."""
    parser = argparse.ArgumentParser(description="Run the pipeline on this machine.")
    parser.add_argument("--master", default="local[2]", help="where Spark runs (local[2])")
    parser.add_argument("--folder", type=Path, default=Path("var/pipeline"), help="folder of all files (var/pipeline)")
    parser.add_argument("--views", type=int, default=2000, help="number of views (2000)")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute() / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    folder.mkdir(parents=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with ExitStack() as stack:
        server = Program(
            stack,
            folder,
            "server",
            *(PYTHON.with_name("twistd"), "--nodaemon", "--pidfile=", "kestrel"),
            *("--config", HERE / "kestrel.toml", "--storage", "scroll:queues"),
            *("--memcache", "tcp:0:interface=127.0.0.1", "--thrift", "tcp:0:interface=127.0.0.1"),
        )
        server.says(r"serves (\d+) queue")
        servers = f"127.0.0.1:{server.says(r'thrift: listening on 127.0.0.1:([0-9]+)')}"
        with BlockingClient(servers, "thrift") as client:
            # A peek creates the child, which gets all items from then on.
            for child in ("views+archive", "views+count"):
                client.peek(child)
        print(f"the server listens on {servers}; Spark starts", flush=True)
        stream = Program(
            stack,
            folder,
            "stream",
            *(PYTHON.with_name("spark-submit"), "--master", arguments.master, "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.sql.shuffle.partitions=2"),
            *(HERE / "pipeline.py", "--servers", servers, "--folder", folder),
        )
        stream.says(r"(\d) queries run")
        begin = datetime.now(UTC)
        browse(servers, "--views", str(arguments.views), "--from", begin.isoformat())
        # A much later view ends all windows before it, and is not counted in them.
        later = begin + timedelta(seconds=arguments.views / 2 + 180)
        browse(servers, "--views", "1", "--from", later.isoformat())
        popular: list[str | Path] = [PYTHON, HERE / "popular.py", "--servers", servers, "--for", str(PATIENCE_S)]
        subprocess.run([*popular, "--until", str(arguments.views)], check=True)
    print(f"Parquet files by day: {folder / 'views'}; output of Spark: {folder / 'stream.log'}")
    return 0


def browse(servers: str, *options: str) -> None:
    """Put views by running browse.py."""
    subprocess.run([PYTHON, HERE / "browse.py", "--servers", servers, *options], check=True)


if __name__ == "__main__":
    sys.exit(main())
