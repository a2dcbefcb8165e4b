"""A server for the load tools, and the tools as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import PATIENCE_S, Processes, Server
from tests.tools.tool_processes import ENVIRONMENT

Load = Callable[..., subprocess.CompletedProcess[str]]

CONFIG = """
queuePath = "queues"
maxOpenTransactions = 100
[[queues]]
name = "small"
maxItems = 3
[[queues]]
name = "hasty"
openTransactionTimeout = "50ms"
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Start servers in a scratch folder, and end them after the tests of the module."""
    folder: Path = tmp_path_factory.mktemp("load")
    with Processes(folder) as processes:
        yield processes


@pytest.fixture(scope="module")
def server(processes: Processes) -> Server:
    """Return a server for the tests of a module, which must leave no queue in it."""
    return processes.serve(CONFIG)


def command(*arguments: object) -> list[str]:
    """Return the command line of a load tool."""
    return [sys.executable, "-m", "kestrel.load.cli", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a load tool until it ends."""
    return subprocess.run(command(*arguments), capture_output=True, env=ENVIRONMENT, text=True, timeout=PATIENCE_S)


def at(server: Server, protocol: str = "memcache") -> list[str]:
    """Return the options that select a server."""
    return ["--protocol", protocol, "--server", f"127.0.0.1:{server.port_of(protocol)}"]


def told(done: subprocess.CompletedProcess[str], status: int = 0) -> Any:
    """Return the JSON object of a run with this exit status."""
    assert done.returncode == status, done
    [line] = done.stdout.splitlines()
    return json.loads(line)
