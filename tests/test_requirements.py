"""What is installed with the server is all that it imports."""

import ast
import configparser
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kestrel"
FOR_TESTS_ALONE = PACKAGE / "testing" / "contract"
"""Whoever inherits these tests has the tools that they are run with."""


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


def test_each_package_that_is_imported_is_required_by_the_install() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].split("\n")
    required = {normalized(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines if line}
    modules = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(FOR_TESTS_ALONE)]
    foreign = set().union(*map(imported_by, modules)) - sys.stdlib_module_names - {"kestrel"}
    assert "twisted" in foreign
    distributions = packages_distributions()
    missing = {name for name in foreign if required.isdisjoint(map(normalized, distributions.get(name, ())))}
    assert not missing
