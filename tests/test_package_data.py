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
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert package / "protocols" / "kestrel.thrift" in others
    assert others == installed
