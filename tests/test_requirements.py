"""What is installed with the server is all that it imports."""

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
FOR_TESTS_ALONE = PACKAGE / "testing" / "contract"
"""Whoever inherits these tests has the tools that they are run with."""
ON_SPARK = PACKAGE / "spark"
SPEAK_TO_ZOOKEEPER = [
    *(PACKAGE / "cluster" / name for name in ("zookeeper.py", "follower.py")),
    *(PACKAGE / "server" / name for name in ("server_set.py", "zookeeper.py")),
]
"""They are imported when a server set is named, and `require_kazoo` has found what they want."""

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
INSTALL = SETUP["options"]["install_requires"]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
SPARK = SETUP["options.extras_require"]["spark"]
CLUSTER = SETUP["options.extras_require"]["cluster"]


def imported_by(path: Path) -> set[str]:
    """The packages that a module imports from, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


def normalized(distribution: str) -> str:
    """As names of distributions are compared."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def missing(modules: Iterable[Path], *requirements: str) -> set[str]:
    """The packages that the modules import, and that none of the requirements brings."""
    lines = "\n".join(requirements).split("\n")
    required = {normalized(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines if line}
    foreign = set().union(*map(imported_by, modules)) - sys.stdlib_module_names - {"kestrel"}
    assert foreign
    distributions = packages_distributions()
    return {name for name in foreign if required.isdisjoint(map(normalized, distributions.get(name, ())))}


def test_each_package_that_is_imported_is_required_by_the_install() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(FOR_TESTS_ALONE)]
    others = [path for path in others if not path.is_relative_to(ON_SPARK) and path not in SPEAK_TO_ZOOKEEPER]
    assert not missing(others, INSTALL)


def test_what_speaks_to_zookeeper_is_required_by_its_extra() -> None:
    assert not missing(SPEAK_TO_ZOOKEEPER, INSTALL, CLUSTER)


def test_what_runs_on_spark_is_required_by_its_extra() -> None:
    assert not missing([*ON_SPARK.rglob("*.py"), *(ROOT / "pyspark_kestrel").glob("*.py")], INSTALL, SPARK)


def followed(modules: Iterable[str]) -> set[Path]:
    """Our modules that mypy reads when it compiles these: what they import from, and what that does in turn."""
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


def test_the_build_requires_each_package_whose_types_the_compiler_reads() -> None:
    """Where one is missing the installation goes on without the extension, and says so in a line that pip hides."""
    (compiled,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "COMPILED"
    )
    assert not missing(followed(compiled), *BUILD)
