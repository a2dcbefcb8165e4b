"""A server for the load tools, and the tools in processes of their own."""

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
    """Starts servers in a scratch folder, and sees to it that none is left."""
    folder: Path = tmp_path_factory.mktemp("load")
    with Processes(folder) as processes:
        yield processes


@pytest.fixture(scope="module")
def server(processes: Processes) -> Server:
    """One for all tests of a module, which leave no queue in it."""
    return processes.serve(CONFIG)


def command(*arguments: object) -> list[str]:
    """What the installed command runs."""
    return [sys.executable, "-m", "kestrel.load.cli", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(command(*arguments), capture_output=True, env=ENVIRONMENT, text=True, timeout=PATIENCE_S)


def at(server: Server, protocol: str = "memcache") -> list[str]:
    """The options by which that server is found."""
    return ["--protocol", protocol, "--server", f"127.0.0.1:{server.port_of(protocol)}"]


def told(done: subprocess.CompletedProcess[str], status: int = 0) -> Any:
    """The JSON object that it has written."""
    assert done.returncode == status, done
    [line] = done.stdout.splitlines()
    return json.loads(line)
