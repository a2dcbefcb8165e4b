"""The commands of docs/cluster.md run with the servers of the example, and a server runs its code."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kestrel.cluster.member import parse_member
from kestrel.config.load import loads
from kestrel.server import announcer
from tests.cluster.servers import await_members, config, set_status
from tests.cluster.test_example import PORTS_EACH, Example, ports_for
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import PATIENCE_S, ROOT, Processes, eventually, own_port

PAGE: Final = (ROOT / "docs" / "cluster.md").read_text()
BASE: Final = 22200
ZOOKEEPER: Final = 2181
EXPORT: Final = "export KESTREL_SERVERS="
SHUTDOWN: Final = "shutdown"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Return the command lines and their output, in the order of the page."""
    lines = "".join(blocks("console"))
    pairs = [each.partition("\n") for each in re.split(r"^\$ ", lines, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in pairs]


@pytest.mark.needs("java", "nc")
def test_commands_print_what_the_page_shows(processes: Processes) -> None:
    tool = processes.write("kestrel-cli", f'#!/bin/sh\nexec {sys.executable} -m kestrel.tools.cli.command "$@"\n')
    tool.chmod(0o755)
    environment = processes.environment()
    environment["PATH"] = f"{processes.folder}:{environment.get('PATH', os.defpath)}"
    with own_port() as zookeeper, ports_for(3) as base:

        def here(text: str) -> str:
            """Return the text with the ports of this test instead of those of the page."""
            text = text.replace(f":{ZOOKEEPER}/", f":{zookeeper}/")
            return re.sub(rf"\b{BASE // 100}\d\d\b", lambda match: str(int(match[0]) - BASE + base), text)

        example = Example(processes, "--base-port", str(base), "--zookeeper-port", str(zookeeper), "--away", "0.1")
        example.says("Ctrl-C stops everything")
        [(first, _), *following] = commands()
        assert first.startswith(EXPORT)
        environment["KESTREL_SERVERS"] = here(first.removeprefix(EXPORT))
        for command, output in following:
            done = subprocess.run(
                ["/bin/sh", "-c", here(command)],
                env=environment,
                cwd=processes.folder,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
            printed = re.sub(r"(?<= put in )\S+(?= s)", "0.0", done.stdout)
            assert (command, columns(printed), done.stderr) == (command, columns(here(output)), "")
            if SHUTDOWN in command:
                example.says("server 2 restarts")
                log = processes.folder / "var" / "cluster" / "server-2" / "log"
                eventually(lambda log=log: log.read_text().count("in none of the two sets") == 2, "it is there")
        assert example.stop() == 0
    assert len(following) == PAGE.count("\n$ ") - 1 > 10


def columns(text: str) -> list[list[str]]:
    """Return the words of each line. The width of a table depends on the ports."""
    return [line.split() for line in text.splitlines()]


def test_member_in_zookeeper_is_the_one_of_the_page(
    processes: Processes, zookeeper: ZooKeeper, prefix: str
) -> None:
    [shown] = map(json.loads, blocks("json"))
    assert parse_member(json.dumps(shown).encode()).service.port == BASE
    given = 'queuePath = "queues"\nstatusFile = "status"\n[admin]\nhttpPort = false\n' + config(zookeeper, prefix)
    server = processes.serve(given)
    await_members(zookeeper, prefix, {server.port: "Up"})
    [node] = zookeeper.client.get_children(f"{prefix}/read")
    assert re.fullmatch(r"member_\d{10}", node)
    text = zookeeper.client.get(f"{prefix}/read/{node}")[0].decode()
    for number, protocol in enumerate(("memcache", "thrift", "text")):
        text = text.replace(f": {server.port_of(protocol)}}}", f": {BASE + number}}}")
    assert json.loads(text) == shown


def test_server_runs_the_code_of_the_page(processes: Processes, zookeeper: ZooKeeper, prefix: str) -> None:
    [code], [given] = blocks("python"), blocks("toml")
    loads(given)
    [name] = set(re.findall(r'Initializer = "(\w+)\.', given))
    password = processes.write("password", "a long one\n")
    code = code.replace("/etc/kestrel/zookeeper-password", str(password)).replace("/run/kestrel", str(processes.folder))
    processes.write(f"{name}.py", code)
    initializers = "\n".join(line for line in given.splitlines() if "Initializer" in line)
    settings = 'queuePath = "queues"\nstatusFile = "status"\n[admin]\nhttpPort = false\n'
    server = processes.serve(settings + config(zookeeper, prefix, initializers))
    await_members(zookeeper, prefix, {server.port: "Up"})
    entries, _ = zookeeper.client.get_acls(f"{prefix}/write")
    assert {(each.id.scheme, each.perms) for each in entries} == {("world", 1), ("digest", 31)}

    def files() -> set[str]:
        return {name for name in ("read", "write") if (processes.folder / name).exists()}

    eventually(lambda: files() == {"read", "write"}, "it has a file beside each set")
    set_status(server, "ReadOnly")
    eventually(lambda: files() == {"read"}, "and none beside what it has left")
    server.stop()
    assert files() == set()


def test_every_log_line_is_in_the_table() -> None:
    source = Path(announcer.__file__).read_text()
    texts = [each.value for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Constant)]
    said = [each for each in texts if isinstance(each, str) and re.search(r"\{(where|reason)\}", each)]
    assert len(said) > 4
    section = PAGE.partition("## When something is wrong")[2]
    told = re.findall(r"^\| `(.*?)`", section, re.MULTILINE)
    names = {"where": "SETS", "reason": "REASON", "sets": "read and write"}
    assert [line for each in said if (line := str(each).format_map(names)) not in told] == []


def test_table_of_statuses_and_sets_is_true() -> None:
    rows = re.findall(r"^\| (\w+) \| (yes|no) \| (yes|no) \|", PAGE, re.MULTILINE)
    told = {status: (read == "yes", write == "yes") for status, read, write in rows}
    sets = {status.value: sets for status, sets in announcer.SETS_OF.items() if status.value != "Down"}
    assert told == {status: ("read" in each, "write" in each) for status, each in sets.items()}


def test_ports_are_those_of_the_example() -> None:
    told = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d{5})\b", PAGE)}
    assert told <= {BASE + server * PORTS_EACH + port for server in range(3) for port in range(4)}
