"""docs/getting_started.md: its files and commands, in order, have the documented results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from kestrel.config.load import loads
from tests.docs.commands import make_programs
from tests.server.any_port import endpoints_on_any_port
from tests.server.running import Processes, Server

PAGE: Final = (Path(__file__).parents[2] / "docs" / "getting_started.md").read_text()
BLOCK: Final = re.compile(r"(?:as\s+`([\w.]+)`[^`]*)?^```(console|python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLAIN, _, WITH_TLS = PAGE.partition("## 6. TLS")


def commands_of(console: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output below it."""
    parts = re.split(r"^\$ (.*)\n", console, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def play(text: str, processes: Processes, server: Server) -> None:
    """Save the files of the text and run its commands, in the order of the page."""
    for name, language, content in BLOCK.findall(text):
        if language == "toml":
            continue
        here = re.sub(r'"localhost"|(?<=--from )localhost', f'"localhost:{server.port}"', content)
        if language == "python":
            processes.write(name, here)
            continue
        for command, output in commands_of(here):
            if command.startswith("export PATH"):
                continue
            settings = f"export PATH={processes.folder}/bin:$PATH KESTREL_SERVERS=localhost:{server.port}\n"
            done = processes.run("bash", "-c", settings + command)
            assert (done.stdout, command) == (output, command), done.stderr
            assert done.returncode in (0, 1), done.stderr  # 1: a get found no item


@pytest.mark.needs("openssl")
def test_page_works_from_top_to_bottom(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    make_programs(tmp_path / "bin")
    config, tls = (content for _, language, content in BLOCK.findall(PAGE) if language == "toml")
    with Processes(tmp_path) as processes:
        server = processes.serve(config)
        play(PLAIN, processes, server)
        server.stop()
        files = WITH_TLS.partition("Stop the server")[0]
        play(files, processes, server)
        (endpoint,) = endpoints_on_any_port(loads(config + tls))["memcache"]
        secure = processes.serve(config + tls, endpoint=endpoint)
        play(WITH_TLS.partition("Stop the server")[2], processes, secure)
