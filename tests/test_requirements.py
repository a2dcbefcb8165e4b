"""The requirements include every imported package."""

import ast
import configparser
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kestrel"
CONTRACT_SUITE = PACKAGE / "testing" / "contract"
"""Authors of backends who inherit these tests install pytest themselves."""
ON_SPARK = PACKAGE / "spark"
ZOOKEEPER_MODULES = [
    *(PACKAGE / "cluster" / name for name in ("zookeeper.py", "follower.py")),
    *(PACKAGE / "server" / name for name in ("server_set.py", "zookeeper.py")),
]
"""Modules that are imported only for server sets, after `require_kazoo`."""
KOMBU_TRANSPORT = PACKAGE / "kombu_transport.py"

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
INSTALL = SETUP["options"]["install_requires"]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
SPARK = SETUP["options.extras_require"]["spark"]
CLUSTER = SETUP["options.extras_require"]["cluster"]
CELERY = SETUP["options.extras_require"]["celery"]
POSTGRES = SETUP["options.extras_require"]["postgres"]
ON_POSTGRES = PACKAGE / "storage" / "postgres"
WITHOUT_PSYCOPG = ON_POSTGRES / "factory.py"
"""The factory imports the other modules of its folder only when a storage is created."""


def imported_by(path: Path) -> set[str]:
    """Return the packages that a module imports, anywhere in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


def normalized(distribution: str) -> str:
    """Return the normalized name of a distribution."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def missing(modules: Iterable[Path], *requirements: str) -> set[str]:
    """Return the packages that the modules import and no requirement provides."""
    lines = "\n".join(requirements).split("\n")
    required = {normalized(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines if line}
    foreign = set().union(*map(imported_by, modules)) - sys.stdlib_module_names - {"kestrel"}
    assert foreign
    distributions = packages_distributions()
    return {name for name in foreign if required.isdisjoint(map(normalized, distributions.get(name, ())))}


def test_imported_packages_are_required() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(CONTRACT_SUITE)]
    with_extras = {*ZOOKEEPER_MODULES, KOMBU_TRANSPORT}
    others = [path for path in others if not path.is_relative_to(ON_SPARK) and path not in with_extras]
    others = [path for path in others if not path.is_relative_to(ON_POSTGRES) or path == WITHOUT_PSYCOPG]
    assert not missing(others, INSTALL)


def test_zookeeper_packages_are_in_their_extra() -> None:
    assert not missing(ZOOKEEPER_MODULES, INSTALL, CLUSTER)


def test_kombu_is_in_its_extra() -> None:
    assert not missing([KOMBU_TRANSPORT], INSTALL, CELERY)


def test_postgres_packages_are_in_their_extra() -> None:
    assert not missing(ON_POSTGRES.rglob("*.py"), INSTALL, POSTGRES)


def test_spark_packages_are_in_their_extra() -> None:
    assert not missing([*ON_SPARK.rglob("*.py"), *(ROOT / "pyspark_kestrel").glob("*.py")], INSTALL, SPARK)


def followed(modules: Iterable[str]) -> set[Path]:
    """Return the modules of this repository that the modules import, directly or indirectly."""
    files: set[Path] = set()
    names = list(modules)
    while names:
        path = ROOT.joinpath(*names.pop().split(".")).with_suffix(".py")
        if not path.is_file() or path in files:
            continue
        files.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("kestrel"):
                names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return files


def test_packages_with_types_for_the_compiler_are_required() -> None:
    """Without one of them the installation omits the extension, and pip hides the message."""
    (compiled,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "COMPILED"
    )
    assert not missing(followed(compiled), *BUILD)
