"""Every command of the documents is run here, or by a test that a comment names.

Commands run in a scratch folder that contains `/etc`, `/var`, `/run` and `/srv` of the pages, with two servers. Servers
are only started with `--validate`, because tests/server/ starts them. For `make` the target and its variables must
exist. `TARGETS` names the tests that run each target.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.docs.commands import COMMANDS, PAGES, ROOT, Command, make_programs
from tests.docs.hexdump import dumps_in
from tests.docs.test_journal_format import PAGE as JOURNAL_PAGE
from tests.docs.test_scroll_format import PAGE as SCROLL_PAGE
from tests.server.running import PATIENCE_S, Processes, Server
from tests.server.scratch_environment import ScratchEnvironment
from tests.tools.tool_processes import fill

NOT_RUN: Final = {"needs a container runtime": 20, "needs another host": 25}
"""The allowed reasons for not running a command, with the number of such commands."""

TARGETS: Final = {
    "run": "tests/server/test_process.py",
    "cluster": "tests/cluster/test_example.py",
    "replicated": "tests/storage/postgres/test_replicated.py",
    "torture": "tests/server/test_kills.py",
    "kill-restart": "tests/server/test_kills.py",
    "moves": "tests/server/test_kills.py",
    "database-kills": "tests/server/test_kills.py",
    "failover": "tests/storage/postgres/test_replicated.py",
    "convert-kills": "tests/tools/test_convert_resumed.py",
    "streams": ".ci/run",
    "spark-environments": "tests/spark/test_environments.py",
    "membership": "tests/cluster/test_torture.py",
    "zookeeper-kills": "tests/cluster/test_torture.py",
    "soak": "tests/server/test_soak.py",
    "histories": "tests/storage/test_read_behind_history.py",
    "every-place": "tests/test_sample.py",
    "damage": "tests/journal/test_damaged_recordings.py",
    "hazards": "tests/server/test_hazards.py",
    "fuzz": ".ci/run",
    "benchmark": "tests/benchmarks/test_benchmarks.py",
    "bench": "tests/benchmarks/test_peers.py",
    "abuse": ".ci/run",
    "docs": "tests/docs/test_site.py",
    "deploy-check": "tests/deploy/test_manifests.py",
    "dist": "tests/release/test_wheel.py",
    "smoke": "tests/release/test_wheel.py",
    "test": ".ci/run",
    "check": ".ci/run",
    "compiled": ".ci/run",
    "clean": "tests/docs/test_commands.py",
}
"""The test that runs each target, perhaps in a shorter form. The CI runs `.ci/run`."""

MAKEFILE: Final = (ROOT / "Makefile").read_text()
INSTALL: Final = re.compile(r"\bpip install (?!--editable)")
NOTED: Final = [command for command in COMMANDS if command.note]
UNNOTED: Final = [command for command in COMMANDS if not command.note]
OF_MAKE: Final = [command for command in UNNOTED if re.match(r"(\w+=\S+ )*make\b|\.ci/run", command.text)]
OF_MODULES: Final = [command for command in UNNOTED if re.search(r"\bpython -m ", command.text)]
INSTALLS: Final = [command for command in UNNOTED if INSTALL.search(command.text)]
RUN_HERE: Final = [command for command in UNNOTED if command not in {*OF_MAKE, *OF_MODULES, *INSTALLS}]


def says(command: Command) -> str:
    """Return the place of a command, for the name of a test."""
    return f"{command.page}:{command.line}"


def test_commands_are_found_on_the_pages() -> None:
    pages = {command.page for command in COMMANDS}
    assert pages >= {"README.md", "CONTRIBUTING.md", "docs/guide.md", "docs/tools.md", "examples/cluster/README.md"}
    assert len(RUN_HERE) > 30


def test_every_comment_belongs_to_a_command() -> None:
    comments = sum(len(re.findall(r"^\s*<!-- (?:not run|run by)", page.read_text(), re.MULTILINE)) for page in PAGES)
    notes = {(command.page, command.note, block_of(command)) for command in NOTED}
    of_blocks = {note for note in notes if note[2]}
    assert len(of_blocks) == comments


def block_of(command: Command) -> int:
    """Return the line of the comment before the block of a command, or 0 for a comment on all consoles."""
    lines = (ROOT / command.page).read_text().split("\n")[: command.line]
    return max((at for at, line in enumerate(lines, 1) if line.strip() == f"<!-- {command.note} -->"), default=0)


def test_commands_are_skipped_only_for_the_listed_reasons() -> None:
    reasons = [command.note.removeprefix("not run: ") for command in NOTED if command.note.startswith("not run")]
    assert {reason: reasons.count(reason) for reason in sorted(set(reasons) | set(NOT_RUN))} == NOT_RUN


def mentions(test: str, command: Command) -> bool:
    """Return whether a test mentions the page or words of the command."""
    text = (ROOT / test).read_text()
    page = Path(command.page)
    name = page.parent.name if page.stem == "README" else page.name
    words = [word for word in re.split(r"[\s='\"]+", command.text) if not word.startswith("kestrel-")]
    words = [word for word in words if len(word) > 7 or (len(word) > 4 and word.isalpha())]
    return re.search(rf"\b{re.escape(name)}\b", text) is not None or any(word in text for word in words)


@pytest.mark.parametrize("command", [each for each in NOTED if not each.note.startswith("not run")], ids=says)
def test_named_test_exists_and_mentions_the_command(command: Command) -> None:
    test = command.note.removeprefix("run by ")
    assert re.fullmatch(r"tests/\S+/test_\w+\.py", test), command
    assert mentions(test, command), command


@cache
def recipe_of(target: str) -> str:
    """Return the recipe of a target, or an empty string."""
    found = re.search(rf"^{re.escape(target)}:.*\n((?:.+\n)*)", MAKEFILE, re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.parametrize("command", OF_MAKE, ids=says)
def test_make_target_exists_and_takes_the_variables(command: Command) -> None:
    words = [word for word in shlex.split(command.text) if word != "make"]
    if words == [".ci/run"]:
        assert os.access(ROOT / ".ci" / "run", os.X_OK)
        return
    environment = []
    while "=" in words[0]:
        environment.append(words.pop(0).partition("=")[0])
    target, *given = words[: words.index(">") if ">" in words else None]
    recipe = recipe_of(target)
    assert recipe, command
    variables = set(re.findall(r"\$\((?:or |if )?([A-Z]+)", recipe))
    assert {word.partition("=")[0] for word in given} <= variables
    assert set(environment) <= {"TMPDIR", "KESTREL_PURE", "KESTREL_EXPECT_BUILD", "KESTREL_REQUIRE_ALL"}


@pytest.mark.parametrize("target", sorted({*re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)} - {"help"}))
def test_recipe_of_a_target_is_run_by_a_test(target: str) -> None:
    test = ROOT / TARGETS[target]
    text = test.read_text()
    module = re.search(r"-m (?:tests\.torture\.)?([\w.]+)", recipe_of(target))
    said = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert said.returncode == 0, said.stderr
    names = {f"make {target}", f"make .venv/.{target}", target, *([module[1].rpartition(".")[2]] if module else ())}
    assert any(re.search(rf"(?<![\w-]){re.escape(name)}\b", text) for name in names)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that stands for the root of the file system, with the files that the pages require."""
    root = tmp_path_factory.mktemp("root")
    folders = ("bin", "etc/kestrel", "var/spool", "var/lib/kestrel", "var/log/kestrel", "run/kestrel", "srv/archive")
    for folder in folders:
        (root / folder).mkdir(parents=True)
    (root / "tap-configs").mkdir()
    for path in (ROOT / "tap-configs").glob("*.toml"):
        text = re.sub(r'"/(var|etc|run|srv)/', rf'"{root}/\1/', path.read_text())
        (root / "tap-configs" / path.name).write_text(text)
        (root / "etc" / "kestrel" / path.name).write_text(text)
    for name in ("kestrel.toml", "guide.toml"):
        (root / name).write_text(f'queuePath = "{root}/var/queues"\n')
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    for name in ("cert.pem", "server.pem"):
        issued.cert_chain_pems[0].write_to_path(root / name)
    for name in ("key.pem", "server.key"):
        issued.private_key_pem.write_to_path(root / name)
    authority.cert_pem.write_to_path(root / "clients.pem")
    shutil.copy(ROOT / "kestrel" / "protocols" / "kestrel.thrift", root)
    fill(root / "var" / "spool" / "kestrel", {"work": dumps_in(JOURNAL_PAGE)[0][1]})
    fill(root / "srv" / "archive", {"archive~work.1700000000000": dumps_in(SCROLL_PAGE)[0][1]})
    make_programs(root / "bin")
    return root


@pytest.fixture(scope="module")
def servers(root: Path) -> Iterator[tuple[Processes, Server, Server]]:
    """Start two servers. The second is `new` on the pages."""
    admin = ("--admin", "tcp:0:interface=127.0.0.1")
    with Processes(root) as processes:
        old = processes.serve(f'queuePath = "{root}/old"\n', *admin)
        new = processes.serve(f'queuePath = "{root}/new"\n', *admin)
        with old.connect() as client:
            client.put(b"work", b"hello")
            client.put(b"work+x", b"hello")
            client.put(b"views+archive", b"hello")
            client.put(b"views+count", b"hello")
        (root / "kestrel.toml").write_text(f'queuePath = "{root}/var/queues"\n')
        yield processes, old, new


def here(text: str, root: Path, old: Server, new: Server) -> str:
    """Return a command with the folders and servers of this test."""
    text = re.sub(r"(?:/opt/kestrel|\.venv|(?<![\w/])kestrel)/bin/", f"{root}/bin/", text)
    text = re.sub(r"(?<![\w.])/(etc|var|run|srv)/(?=[\w.])", rf"{root}/\1/", text)
    text = re.sub(r"\bnc (?:-\S+ )*localhost 22133\b", f"nc -N 127.0.0.1 {old.port}", text)
    text = re.sub(r"\bnc (?:-\S+ )*localhost 2222\b", f"nc -N 127.0.0.1 {old.port_of('text')}", text)
    text = re.sub(r"\blocalhost:2223\b", f"127.0.0.1:{old.port_of('admin')}", text)
    port = old.port_of("thrift") if "--protocol thrift" in text else old.port
    text = re.sub(r"(?<=--server )(?:old|mq1\S*)(?=\s|$)", f"127.0.0.1:{port}", text)
    text = re.sub(r"(?<=--server )new(?=\s|$)", f"127.0.0.1:{new.port}", text)
    if re.search(r"\btwistd\b", text) and not re.search(r"--validate|--help-storage", text):
        text += " --validate"
    return text


def needed_by(command: Command) -> list[str]:
    """Return the system programs that a command needs."""
    return [name for name in ("nc", "curl") if re.search(rf"\b{name}\b", command.text)]


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=pytest.mark.needs(*needed_by(each)), id=says(each)) for each in RUN_HERE]
)
def test_command_succeeds(command: Command, root: Path, servers: tuple[Processes, Server, Server]) -> None:
    processes, old, new = servers
    environment = processes.environment() | {
        "PATH": f"{root}/bin:{os.environ['PATH']}",
        "KESTREL_SERVERS": f"127.0.0.1:{old.port}",
    }
    done = subprocess.run(
        ["bash", "-c", here(command.text, root, old, new)],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("command", OF_MODULES, ids=says)
def test_program_of_the_checkout_has_the_options(command: Command) -> None:
    module = re.search(r"-m ([\w.]+)", command.text)
    assert module is not None
    helps = help_of(module[1])
    assert [option for option in re.findall(r"(?<!\w)--[a-z-]+", command.text) if option not in helps] == []


@cache
def help_of(module: str) -> str:
    """Return the help of a program."""
    command, environment = [sys.executable, "-m", module, "--help"], os.environ | {"PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert said.returncode == 0, said.stderr
    return said.stdout


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a copy of the sources, because a build creates files in it."""
    sources = tmp_path / "sources"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "compiled.json", "dropin.cache")
    for name in ("kestrel", "pyspark_kestrel", "tap-configs", "twisted"):
        shutil.copytree(ROOT / name, sources / name, ignore=ignored)
    (sources / "docs").mkdir()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "LICENSE", "docs/package.md"):
        shutil.copy(ROOT / name, sources / name)
    return sources


def test_installed_package_has_its_commands(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KESTREL_EXTENSION", "none")
    (scratch_folder := tmp_path / "scratch").mkdir()
    scratch = ScratchEnvironment(scratch_folder)
    said = {INSTALL.split(command.text)[1] for command in INSTALLS}
    assert said == {".", "'.[cluster]'", "kestrel-mq", "'kestrel-mq[celery]'"}
    scratch.install(".", folder=sources)
    programs = scratch_folder / "environment" / "bin"
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = set(setup["options.extras_require"])
    assert {extra for words in said for extra in re.findall(r"\[(.*)\]", words)} <= extras
    commands = re.findall(r"^(kestrel-\S+) =", setup["options.entry_points"]["console_scripts"], re.MULTILINE)
    assert commands and all((programs / name).exists() for name in commands)
    told = subprocess.run([programs / "kestrel-cli", "--version"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (told.returncode, told.stderr) == (0, "")
