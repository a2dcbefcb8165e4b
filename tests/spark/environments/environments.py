"""The environments in which Spark programs with kestrel run, and a run of `program.py` in each.

    python -m tests.spark.environments.environments [NAME ...]

installs further versions of PySpark and the parts of Spark Connect into ``build/spark``, which needs a package index,
and prints a line for each environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from zipfile import ZipFile

from tests.child import LONG_S, Child
from tests.journal.handwritten import REMOVE, addx
from tests.scroll.handwritten import WRITER, put
from tests.spark import java

ROOT: Final = Path(__file__).parents[3]
PROGRAM: Final = Path(__file__).with_name("program.py")
INSTALLED: Final = ROOT / "build" / "spark"
PACKAGES: Final = Path(sysconfig.get_path("purelib"))

CLUSTER: Final = ("--master", "local-cluster[2,1,1024]")
CONNECT: Final = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")

EXPECTED: Final = {
    "records": {"ADDX": 4, "REMOVE": 1},
    "histories": {"queued": 3, "removed": 1},
    "views": {"web1": 3, "web2": 1},
    "fleet": {"ok": 2},
    "stream": {"failures": 1, "rows": 4, "distinct": 4},
}


class Environment(NamedTuple):
    """A way to run the program: the arguments before it, the import path, and more variables."""

    arguments: Sequence[str | Path]
    path: Sequence[Path]
    variables: dict[str, str]


def installed(name: str, *packages: str) -> Path:
    """Return the folder with these packages, which are installed if it does not exist yet."""
    folder = INSTALLED / name
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--target", folder]
        subprocess.run([*pip, *packages], check=True, timeout=LONG_S)
    return folder


def embedded(scratch: Path) -> Environment:
    """The checkout, in the process of the driver."""
    return Environment(["--master", "local[2]"], [ROOT], {})


def py_files(scratch: Path) -> Environment:
    """The package as a zip file that `--py-files` sends to the workers."""
    archive = scratch / "kestrel.zip"
    with ZipFile(archive, "w") as file:
        for package in ("kestrel", "pyspark_kestrel"):
            for path in sorted((ROOT / package).rglob("*")):
                if path.is_file() and path.suffix not in (".so", ".pyc"):
                    file.write(path, path.relative_to(ROOT))
    return Environment([*CLUSTER, "--py-files", archive], [PACKAGES], {"KESTREL_REGISTER": "1"})


_SOURCES: Final = ("kestrel", "pyspark_kestrel", "twisted", "tap-configs")
_BUILD_FILES: Final = ("setup.py", "setup.cfg", "pyproject.toml", "LICENSE", "docs/package.md")


def wheel(scratch: Path) -> Environment:
    """A wheel that is installed on a cluster of a master and two workers."""
    sources = scratch / "sources"  # a build in the checkout would leave files there
    for name in _SOURCES:
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (sources / "docs").mkdir()
    for name in _BUILD_FILES:
        shutil.copy(ROOT / name, sources / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, sources]
    subprocess.run([*pip, *build], check=True, timeout=LONG_S, env=os.environ | {"KESTREL_EXTENSION": "none"})
    (built,) = scratch.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", scratch / "installed", built], check=True, timeout=LONG_S)
    return Environment([*CLUSTER], [scratch / "installed", PACKAGES], {})


def connect(scratch: Path) -> Environment:
    """Spark Connect: the program is a client of a Spark server in another process."""
    return Environment([], [installed("connect", *CONNECT), ROOT], {"SPARK_REMOTE": "local[2]"})


def version(name: str) -> Callable[[Path], Environment]:
    """Another version of PySpark with the checkout."""

    def made(scratch: Path) -> Environment:
        return Environment(["--master", "local[2]"], [installed(name, f"pyspark=={name}"), ROOT], {})

    return made


VERSIONS: Final = ("4.0.5", "4.1.4", "4.2.1")

ENVIRONMENTS: Final[dict[str, Callable[[Path], Environment]]] = {
    "embedded": embedded,
    "py-files": py_files,
    "wheel": wheel,
    "connect": connect,
    **{f"pyspark-{name}": version(name) for name in VERSIONS},
}


def write_queues(folder: Path) -> None:
    """Write the journals and the archive that the program reads."""
    for server, contents in (("web1", addx(b"a") + addx(b"b") + REMOVE + addx(b"c")), ("web2", addx(b"d"))):
        spool = folder / "data" / server / "spool"
        spool.mkdir(parents=True)
        (spool / "work").write_bytes(contents)
    (folder / "archive").mkdir()
    for number in (1, 3):
        items = put(number, b"one") + put(number + 1, b"two")
        (folder / "archive" / f"archive~work.{number}").write_bytes(WRITER + items)


def run(name: str, folder: Path) -> dict[str, Any]:
    """Run the program in an environment, with all files in the folder. Return the version of Spark and its results."""
    scratch = folder / "scratch"
    scratch.mkdir()
    write_queues(folder)
    environment = ENVIRONMENTS[name](scratch)
    python = scratch / "python"
    # Without `site`, which would add the checkout of an editable installation.
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o700)
    path = [*environment.path, PACKAGES]
    home = next(each / "pyspark" for each in path if (each / "pyspark").exists())
    linked = scratch / "home"  # workers write their logs there
    linked.mkdir()
    for entry in home.iterdir():
        (linked / entry.name).symlink_to(entry)
    variables = {
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "SPARK_HOME": str(linked),
        "SPARK_LOCAL_DIRS": str(scratch / "spark"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": java.OPTIONS,
    }
    is_client = "SPARK_REMOTE" in environment.variables
    quiet = ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=4"]
    submit = [linked / "bin" / "spark-submit", *quiet, *environment.arguments]
    command = [*([python] if is_client else submit), PROGRAM, folder]
    child_environment = {**os.environ, **variables, **environment.variables}
    with Child(command, env=child_environment, cwd=scratch, stdout=PIPE, stderr=PIPE, text=True) as child:
        try:
            output, errors = child.communicate(timeout=LONG_S)
        except subprocess.TimeoutExpired as late:
            output, errors = (late.stdout or b"").decode(), "it has not ended in time"
    results: dict[str, Any] = {"spark": "unknown"}
    for line in output.splitlines():
        if line.startswith("{"):
            results |= json.loads(line)
    if results.keys() != {"spark", *EXPECTED}:
        results["ended"] = errors[-2000:]
    return results


def main(names: Sequence[str]) -> int:
    """Run the program in these environments, or in all, and print the results. Return 1 if one is unexpected."""
    status = 0
    for name in names or ENVIRONMENTS:
        with TemporaryDirectory() as folder:
            results = run(name, Path(folder))
        failed = {step: each for step, each in results.items() if step != "spark" and each != EXPECTED.get(step)}
        print(f"{name:16} Spark {results['spark']:8} {failed or 'ok'}", flush=True)
        status |= bool(failed)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
