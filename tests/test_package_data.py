"""Package data."""

import configparser
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_all_files_of_the_package_are_installed() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    installed = {
        ROOT.joinpath(*package.split("."), name)
        for package, names in setup["options.package_data"].items()
        for name in names.split()
    }
    package = ROOT / "kestrel"
    generated = {package / "compiled.json", *package.rglob("*.so")}
    """Files that a build of the extension writes. setup.py installs them separately."""
    # While another process compiles a module, __pycache__ has temporary files.
    files = [path for path in package.rglob("*") if "__pycache__" not in path.parts and path.is_file()]
    others = {path for path in files if path.suffix != ".py"} - generated
    assert package / "protocols" / "kestrel.thrift" in others
    assert others == installed
