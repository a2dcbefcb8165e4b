"""docs/clients.md: the program of each library is run as it is, and prints the documented lines.

In a second run the first item is put by another client while the program waits for it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from tests.child import Child
from tests.docs.client_programs import Language, ends_or, run
from tests.docs.markdown import code_blocks, section, table
from tests.server.running import ROOT, Processes, Server
from tests.system_packages import NODE_MODULES

PAGE: Final = (ROOT / "docs" / "clients.md").read_text()

PYTHON: Final = Language("jobs.py", (f"{sys.executable} jobs.py",))
NODE: Final = Language("jobs.js", (f"env NODE_PATH={NODE_MODULES} node jobs.js",))
PERL: Final = Language("jobs.pl", ("perl jobs.pl",))
RUBY: Final = Language("jobs.rb", ("ruby jobs.rb",))


class Example(NamedTuple):
    """The program of a section of the page."""

    heading: str
    fence: str
    """Language of the code block."""
    language: Language
    needs: tuple[str, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()
    """Replacements in the program, which the text of the section describes."""

    @property
    def program(self) -> str:
        """The program, with the changes."""
        (program,) = code_blocks(section(PAGE, self.heading), self.fence)
        for old, new in self.changes:
            assert old in program
            program = program.replace(old, new)
        return program


EXAMPLES: Final = {
    "pylibmc": Example("pylibmc", "python", PYTHON, ("pylibmc",)),
    "python-memcached": Example("python-memcached", "python", PYTHON),
    "pymemcache": Example("pymemcache", "python", PYTHON),
    "aiomcache": Example("aiomcache", "python", PYTHON),
    "Node memcached": Example("memcached", "js", NODE, ("node", "npm-clients")),
    "memcache-client": Example("memcache-client", "js", NODE, ("node", "npm-clients")),
    "PHP memcached": Example("PHP", "php", Language("jobs.php", ("php jobs.php",)), ("php", "php-memcached")),
    "a socket in Ruby": Example("Ruby", "ruby", RUBY, ("ruby",)),
    "gomemcache": Example(
        "Go", "go", Language("jobs.go", ("env GO111MODULE=off GOPATH=/usr/share/gocode go run jobs.go",)),
        ("go", "gomemcache"),
    ),
    "spymemcached": Example(
        "Java", "java", Language("Jobs.java", ("java -cp /usr/share/java/spymemcached.jar Jobs.java",)),
        ("javac", "spymemcached"),
    ),
    "Cache::Memcached": Example(
        "Perl", "perl", PERL, ("Cache::Memcached",),
        (("Cache::Memcached::Fast", "Cache::Memcached"), ("io_timeout", "select_timeout")),
    ),
    "Cache::Memcached::Fast": Example("Perl", "perl", PERL, ("Cache::Memcached::Fast",)),
    "libmemcached": Example(
        "C", "c", Language("jobs.c", ("gcc jobs.c -lmemcached -o jobs", "./jobs")), ("gcc", "libmemcached")
    ),
}  # fmt: skip

BINARY: Final = {
    "memjs": (NODE, ("node", "npm-clients"), """\
const client = require("memjs").Client.create("localhost:22133", { timeout: 0.2, retries: 1, logger: { log() {} } });
client.get("jobs", error => {
  console.log(error instanceof Error); // true
  client.close();
});
"""),
    "dalli": (RUBY, ("ruby", "dalli"), """\
require "dalli"
require "logger"
Dalli.logger = Logger.new(nil)
client = Dalli::Client.new("localhost:22133", socket_timeout: 0.2)
begin
  client.get("jobs")
rescue Dalli::DalliError => error
  p error.class # Dalli::RingError
end
"""),
}  # fmt: skip
"""Libraries that speak only the binary protocol, each with a program that shows an error."""

EACH_EXAMPLE: Final = pytest.mark.parametrize(
    "example", [pytest.param(each, id=name, marks=pytest.mark.needs(*each.needs)) for name, each in EXAMPLES.items()]
)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("clients")) as processes:
        yield processes


@pytest.fixture(scope="module")
def shared_server(processes: Processes) -> Server:
    return processes.serve('queuePath = "queues"\nmaxOpenTransactions = 100\n')


@pytest.fixture
def server(shared_server: Server) -> Server:
    """Return a server whose queue is empty."""
    with shared_server.connect() as client:
        client.ask(b"delete jobs\r\n", b"DELETED\r\n")
    return shared_server


@EACH_EXAMPLE
def test_program_prints_the_documented_lines(example: Example, processes: Processes, server: Server) -> None:
    run(example.program, example.language, processes, server.port)


@EACH_EXAMPLE
def test_waiting_program_gets_the_item_of_another_client(
    example: Example, processes: Processes, server: Server
) -> None:
    without_put, puts = re.subn(r'^.*\b(?:set|put)\b.*"hello".*\n', "", example.program, flags=re.I | re.M)
    assert puts == 1

    def put_when_it_waits(running: Child[str]) -> None:
        with server.connect() as client:
            ends_or(running, lambda: client.stats().get("queue_jobs_waiters") == "1", "the program waits")
            client.put(b"jobs", b"hello")

    # Below the timeouts that the programs set, which are 10 s.
    program = without_put.replace("t=1000", "t=9000", 1)
    run(program, example.language, processes, server.port, put_when_it_waits)


@pytest.mark.parametrize(
    ("language", "program"),
    [pytest.param(language, program, id=name, marks=pytest.mark.needs(*needs))
     for name, (language, needs, program) in BINARY.items()],
)  # fmt: skip
def test_library_with_the_binary_protocol_reports_an_error(
    language: Language, program: str, processes: Processes, server: Server
) -> None:
    run(program, language, processes, server.port)


# The page.


def libraries() -> dict[tuple[str, str], str]:
    """Return the versions that the table names, by language and library, without kestrel's own client."""
    rows = table(PAGE, "language", "library")
    return {(row[0], re.sub(r"\[(.*)\]\(.*\)", r"\1", row[1])): row[2] for row in rows if row[2]}


def test_each_library_of_the_table_has_a_test() -> None:
    tested = EXAMPLES.keys() | BINARY.keys()
    assert [each for each in libraries() if each[1] not in tested and " ".join(each) not in tested] == []


def test_each_program_of_the_page_is_run() -> None:
    programs = {each.heading: each.program for each in EXAMPLES.values() if not each.changes}
    assert len(programs) == PAGE.count("\n```") / 2


def test_page_names_the_npm_versions_of_the_tests() -> None:
    pinned = json.loads((ROOT / "tests" / "npm" / "package.json").read_text())["dependencies"]
    assert pinned == {name: version for (language, name), version in libraries().items() if language == "Node"}


@pytest.mark.parametrize("name", ["gomemcache", "spymemcached", "libmemcached"])
def test_page_says_how_a_program_is_run(name: str) -> None:
    example = EXAMPLES[name]
    for command in example.language.commands:
        assert f"`{command.removeprefix('env ')}`" in section(PAGE, example.heading)
