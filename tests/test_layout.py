"""The architecture: imports point down the layers and never form a circle."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kestrel"

LAYERS = (
    {"spark", "load", "worker", "kombu_transport"},
    {"tools"},
    {"testing"},
    {"server", "library", "client"},
    {"admin"},
    {"net"},
    {"session"},
    {"queues"},
    {"storage"},
    {"protocols", "journal", "scroll", "cluster"},
    {"disk", "config"},
    {"names", "pem", "keyed", "address", "tls", "escaping"},
    {"item", "commands", "errors", "histogram"},
    {"compiled"},
)
"""Layers of the package. A part may import from lower layers and from itself."""

LAYER_OF = {part: number for number, layer in enumerate(LAYERS) for part in layer}

_BELOW = {"compiled", "histogram", "item", "commands", "errors", "names", "keyed", "address", "tls", "escaping"}

STANDARD_LIBRARY_ONLY = _BELOW | {"journal", "scroll", "disk"}

WITHOUT_TWISTED = STANDARD_LIBRARY_ONLY | {"protocols", "config", "cluster"}
"""Parts without Twisted. A process that only reads journals must not need it."""

CLIENTS_WITH_TWISTED = {"client", "server", "pipeline", "openssl"}
"""The modules of `kestrel.client` that use Twisted. A Spark worker imports the others."""

BACKENDS = (
    *(f"kestrel.storage.{backend}" for backend in ("journal", "log", "scroll", "memory", "postgres")),
    *("kestrel.journal", "kestrel.scroll", "kestrel.disk"),
)

CONTRACT = PACKAGE / "testing" / "contract"
"""Tests that backends inherit."""

REACTOR_ALLOWED = {"server", "load"}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


@cache
def imports_of(path: Path) -> list[str]:
    """Return the dotted names that a module imports anywhere in the file, also under TYPE_CHECKING."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def ours(path: Path) -> Iterator[str]:
    """Yield the parts of this package that a module imports."""
    for name in imports_of(path):
        words = name.split(".")
        if words[0] == "kestrel" and len(words) > 1 and words[1] in LAYER_OF:
            yield words[1]


def imports(packages: Collection[str], paths: Iterable[Path]) -> list[tuple[str, str]]:
    """Return the modules that import from one of these packages or modules, with the name."""
    prefixes = tuple(f"{package}." for package in packages)
    return [(str(path), name) for path in paths for name in imports_of(path) if f"{name}.".startswith(prefixes)]


def test_every_part_has_a_layer() -> None:
    assert {part_of(path) for path in modules()} - {"__init__"} == set(LAYER_OF)


def test_imports_point_downwards() -> None:
    assert imports_of(PACKAGE / "__init__.py") == ["kestrel.compiled"], "kestrel/__init__.py stays light"
    parts = [(path, part_of(path)) for path in modules() if path.parent != PACKAGE or path.stem != "__init__"]
    wrong = [
        (path, other)
        for path, part in parts
        for other in ours(path)
        if other != part and LAYER_OF[other] <= LAYER_OF[part]
    ]
    assert wrong == []


def test_worker_modules_do_not_import_twisted() -> None:
    assert imports({"twisted", "zope"}, (path for path in modules() if part_of(path) in WITHOUT_TWISTED)) == []


def test_blocking_client_does_not_import_twisted() -> None:
    paths = [path for path in (PACKAGE / "client").rglob("*.py") if path.stem not in CLIENTS_WITH_TWISTED]
    twisted = {"twisted", "zope", "OpenSSL", *(f"kestrel.client.{stem}" for stem in CLIENTS_WITH_TWISTED)}
    assert imports(twisted, paths) == []
    assert {part for path in paths for part in ours(path)} <= WITHOUT_TWISTED | {"client"}


def test_only_the_twisted_worker_imports_twisted() -> None:
    twisted = ("twisted", *(f"kestrel.client.{stem}" for stem in CLIENTS_WITH_TWISTED))
    for path in (PACKAGE / "worker").rglob("*.py"):
        assert bool(imports(twisted, [path])) == (path.stem == "twisted_worker"), path


def test_journal_needs_only_the_standard_library() -> None:
    paths = [path for path in modules() if part_of(path) in STANDARD_LIBRARY_ONLY]
    assert imports({"twisted", "zope", "attrs", "attr", "cattrs"}, paths) == []


def test_only_programs_import_the_reactor() -> None:
    paths = [path for path in modules() if part_of(path) not in REACTOR_ALLOWED]
    assert imports({"twisted.internet.reactor"}, paths) == []


def test_only_the_contract_suite_imports_test_tools() -> None:
    paths = [path for path in modules() if not path.is_relative_to(CONTRACT)]
    assert imports({"pytest", "hypothesis"}, paths) == []


def test_contract_suite_imports_no_backend_and_no_higher_layer() -> None:
    paths = list(CONTRACT.rglob("*.py"))
    assert {part for path in paths for part in ours(path)} <= {"testing", "storage", "config", "errors", "item"}
    assert imports(BACKENDS, paths) == []


def test_library_does_not_import_clients() -> None:
    beside = {"testing", "net", "session", "protocols", "commands"}
    for path in (PACKAGE / "library").rglob("*.py"):
        assert not beside.intersection(ours(path)), path


def test_log_engine_imports_neither_the_journal_nor_the_scroll() -> None:
    backends = ("kestrel.storage.journal", "kestrel.storage.scroll", "kestrel.journal", "kestrel.scroll")
    assert imports(backends, (PACKAGE / "storage" / "log").rglob("*.py")) == []


def test_queues_import_no_backend() -> None:
    assert imports(BACKENDS, (path for path in modules() if part_of(path) in {"queues", "session", "net"})) == []


def test_imports_form_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in modules():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        graph[name] = set(imports_of(path))
    names = set(graph)
    edges = {
        name: {target for each in imported for target in (each, each.rpartition(".")[0]) if target in names}
        for name, imported in graph.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in edges[name] - {name}:
                visit(target, (*trail, name))
            done.add(name)

    for name in names:
        visit(name, ())


def test_plugin_folders_are_not_packages() -> None:
    assert not list((ROOT / "twisted").rglob("__init__.py"))


def test_every_logger_has_a_name() -> None:
    """A compiled module has no frame with its name, and log levels are set by name."""
    assert [path for path in modules() if "Logger()" in path.read_text()] == []
