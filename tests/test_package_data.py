"""What is installed beside the modules."""

import configparser
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_file_of_the_package_that_is_no_module_is_installed_with_it() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    installed = {
        ROOT.joinpath(*package.split("."), name)
        for package, names in setup["options.package_data"].items()
        for name in names.split()
    }
    package = ROOT / "kestrel"
    generated = {package / "compiled.json", *package.rglob("*.so")}
    """What a build of the extension leaves in a checkout; it has its own way into what is installed."""
    # In __pycache__ there may be files for a moment, while another process compiles a module.
    files = [path for path in package.rglob("*") if "__pycache__" not in path.parts and path.is_file()]
    others = {path for path in files if path.suffix != ".py"} - generated
    assert package / "protocols" / "kestrel.thrift" in others
    assert others == installed
