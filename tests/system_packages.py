"""The programs and libraries from outside PyPI that some tests need, and how to get them.

A test names what it needs: `@pytest.mark.needs("memcaslap")`. `tests/conftest.py` leaves it out where that is
missing, and closes the run with a line saying so. Run as a script, this module prints the Debian packages of
everything that is missing; it imports nothing but the standard library, so that this works before an install.
"""

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True, slots=True)
class SystemPackage:
    """One thing that a test may need: how to see that it is here, and the Debian packages that bring it."""

    is_installed: Callable[[], bool]
    debian_packages: tuple[str, ...]


def program(name: str, *debian_packages: str) -> SystemPackage:
    """A program that is found on PATH."""
    return SystemPackage(lambda: shutil.which(name) is not None, debian_packages)


def python_module(name: str, *debian_packages: str) -> SystemPackage:
    """A Python module; the Debian packages are what pip needs to build it, where there is no wheel."""
    return SystemPackage(lambda: importlib.util.find_spec(name) is not None, debian_packages)


def has_postgresql() -> bool:
    """Whether there are the programs of a PostgreSQL server, which Debian keeps off PATH. No cluster need run."""
    return any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or shutil.which("initdb") is not None


def has_c_compiler() -> bool:
    """Whether C can be compiled, with the headers of the C library."""
    return shutil.which("gcc") is not None and Path("/usr/include/stdio.h").exists()


def has_python_headers() -> bool:
    """Whether there is what extensions of this Python are compiled with."""
    return Path(sysconfig.get_path("include"), "Python.h").exists()


def can_mount() -> bool:
    """Tell whether this process may mount a tmpfs, which takes root and, in a container, CAP_SYS_ADMIN."""
    if os.geteuid() or shutil.which("mount") is None:
        return False
    with TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "none", folder]
        if subprocess.run(mount, check=False, capture_output=True, timeout=60).returncode:
            return False
        subprocess.run(["umount", folder], check=True, timeout=60)
        return True


SYSTEM_PACKAGES: dict[str, SystemPackage] = {
    "beanstalkd": program("beanstalkd", "beanstalkd"),
    "chromedriver": program("chromedriver", "chromium-driver"),
    "chromium": program("chromium", "chromium"),
    "java": program("java", "openjdk-17-jre-headless"),
    "curl": program("curl", "curl"),
    "gcc": SystemPackage(has_c_compiler, ("gcc", "libc6-dev")),
    "memcached": program("memcached", "memcached"),
    "memcaslap": program("memcaslap", "libmemcached-tools"),
    "memccapable": program("memccapable", "libmemcached-tools"),
    "memcstat": program("memcstat", "libmemcached-tools"),
    "nc": program("nc", "netcat-openbsd"),
    "openssl": program("openssl", "openssl"),
    "postgresql": SystemPackage(has_postgresql, ("postgresql",)),
    "python-headers": SystemPackage(has_python_headers, ("python3-dev",)),
    "redis-server": program("redis-server", "redis-server"),
    "setpriv": program("setpriv", "util-linux"),
    "systemd-analyze": program("systemd-analyze", "systemd"),
    "mount": SystemPackage(can_mount, ("mount",)),
    "thrift": program("thrift", "thrift-compiler"),
    "pylibmc": python_module("pylibmc", "libmemcached-dev", "zlib1g-dev", "gcc", "python3-dev"),
}


def missing(names: Iterable[str]) -> list[str]:
    """Those of the names that are not installed here, in their order."""
    return [name for name in names if not SYSTEM_PACKAGES[name].is_installed()]


def debian_packages(names: Iterable[str]) -> list[str]:
    """The Debian packages that bring the names, each once."""
    return list(dict.fromkeys(deb for name in names for deb in SYSTEM_PACKAGES[name].debian_packages))


def install_line(names: Iterable[str]) -> str:
    """The command that installs the names on Debian."""
    return " ".join(["apt-get install", *debian_packages(names)])


if __name__ == "__main__":
    print(*debian_packages(missing(SYSTEM_PACKAGES)))
