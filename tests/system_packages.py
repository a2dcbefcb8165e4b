"""The programs and libraries outside PyPI that some tests need, and the Debian packages that contain them.

A test lists its needs: `@pytest.mark.needs("memcaslap")`. `tests/conftest.py` skips it if one is missing, and prints
the skipped tests at the end. Run as a script, this module prints the Debian packages of everything that is missing. It
imports only the standard library, so that it works before an installation.
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
    """A program or library, with a check whether it is installed and its Debian packages."""

    is_installed: Callable[[], bool]
    debian_packages: tuple[str, ...]


def program(name: str, *debian_packages: str) -> SystemPackage:
    """Return a package for a program on PATH."""
    return SystemPackage(lambda: shutil.which(name) is not None, debian_packages)


def python_module(name: str, *debian_packages: str) -> SystemPackage:
    """Return a package for a Python module, with the Debian packages that pip needs to build it."""
    return SystemPackage(lambda: importlib.util.find_spec(name) is not None, debian_packages)


def file(pattern: str, *debian_packages: str) -> SystemPackage:
    """Return a package for a file of a library. The pattern begins below `/`."""
    return SystemPackage(lambda: any(Path("/").glob(pattern)), debian_packages)


def has_postgresql() -> bool:
    """Return whether the PostgreSQL server programs are installed. Debian does not add them to PATH."""
    return any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or shutil.which("initdb") is not None


def has_c_compiler() -> bool:
    """Return whether there are a C compiler and the headers of the C library."""
    return shutil.which("gcc") is not None and Path("/usr/include/stdio.h").exists()


def has_python_headers() -> bool:
    """Return whether the headers of this Python are installed."""
    return Path(sysconfig.get_path("include"), "Python.h").exists()


def can_mount() -> bool:
    """Return whether this process may mount a tmpfs, which requires root and, in a container, CAP_SYS_ADMIN."""
    if os.geteuid() or shutil.which("mount") is None:
        return False
    with TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "none", folder]
        if subprocess.run(mount, check=False, capture_output=True, timeout=60).returncode:
            return False
        subprocess.run(["umount", folder], check=True, timeout=60)
        return True


NODE_MODULES = Path(__file__).resolve().parent.parent / "build" / "npm" / "node_modules"
"""The clients of tests/npm/package.json, which `make .venv/.npm` installs."""

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
    "libmemcached": file("usr/include/libmemcached/memcached.h", "libmemcached-dev"),
    "node": program("node", "nodejs"),
    "npm": program("npm", "npm"),
    # Not from Debian. To name Debian's npm here would break machines that have another Node.
    "npm-clients": SystemPackage(NODE_MODULES.is_dir, ()),
    "php": program("php", "php-cli"),
    "php-memcached": file("usr/lib/php/*/memcached.so", "php-memcached"),
    "ruby": program("ruby", "ruby"),
    "dalli": file("usr/share/rubygems-integration/all/gems/dalli-*", "ruby-dalli"),
    "thrift-ruby": file("usr/lib/*/rubygems-integration/*/specifications/thrift-*.gemspec", "ruby-thrift"),
    "go": program("go", "golang-go"),
    "gomemcache": file(
        "usr/share/gocode/src/github.com/bradfitz/gomemcache/memcache", "golang-github-bradfitz-gomemcache-dev"
    ),
    "javac": program("javac", "openjdk-17-jdk-headless"),
    "spymemcached": file("usr/share/java/spymemcached.jar", "libspymemcached-java"),
    "Cache::Memcached": file("usr/share/perl5/Cache/Memcached.pm", "libcache-memcached-perl"),
    "Cache::Memcached::Fast": file("usr/lib/*/perl5/*/Cache/Memcached/Fast.pm", "libcache-memcached-fast-perl"),
    # Debian's libthrift-perl names no dependencies.
    "thrift-perl": file(
        "usr/share/perl5/Thrift.pm", "libthrift-perl", "libbit-vector-perl", "libclass-accessor-perl"
    ),
    "pylibmc": python_module("pylibmc", "libmemcached-dev", "zlib1g-dev", "gcc", "python3-dev"),
}


def missing(names: Iterable[str]) -> list[str]:
    """Return the names that are not installed, in order."""
    return [name for name in names if not SYSTEM_PACKAGES[name].is_installed()]


def debian_packages(names: Iterable[str]) -> list[str]:
    """Return the Debian packages for these names, each once."""
    return list(dict.fromkeys(deb for name in names for deb in SYSTEM_PACKAGES[name].debian_packages))


def install_line(names: Iterable[str]) -> str:
    """Return the command that installs these names on Debian."""
    return " ".join(["apt-get install", *debian_packages(names)])


if __name__ == "__main__":
    print(*debian_packages(missing(SYSTEM_PACKAGES)))
