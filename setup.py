"""Build of the optional extension, which contains the modules of the hot path, compiled by mypyc.

Without a compiler or headers these modules run as Python. In the environment of the build, KESTREL_EXTENSION=require
makes a failed build an error, and KESTREL_EXTENSION=none builds no extension. All metadata is in setup.cfg.
"""

import ast
import hashlib
import json
import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
WANTED = os.environ.get("KESTREL_EXTENSION", "optional")
BUILDING = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install", "develop"}

# In the order in which a message passes through them.
COMPILED = (
    "kestrel.disk.run_cursor",
    "kestrel.item",
    "kestrel.commands",
    "kestrel.histogram",
    "kestrel.net.connection",
    "kestrel.net.hub",
    "kestrel.net.hub_transport",
    "kestrel.protocols.buffer",
    "kestrel.protocols.line_parsing",
    "kestrel.protocols.codec",
    "kestrel.protocols.memcache",
    "kestrel.protocols.text",
    "kestrel.protocols.thrift",
    "kestrel.protocols.thrift_binary",
    "kestrel.session.access",
    "kestrel.session.timeouts",
    "kestrel.session.gets",
    "kestrel.session.outbox",
    "kestrel.session.puts",
    "kestrel.session.open_reads",
    "kestrel.session.session_context",
    "kestrel.session.session",
    "kestrel.session.session_state",
    "kestrel.queues.counters",
    "kestrel.queues.head",
    "kestrel.queues.limits",
    "kestrel.queues.manager",
    "kestrel.queues.queue_histograms",
    "kestrel.queues.routing",
    "kestrel.queues.open_reads",
    "kestrel.queues.queue",
    "kestrel.queues.context",
    "kestrel.queues.status",
    "kestrel.queues.tick_scheduler",
    "kestrel.queues.waiters",
    "kestrel.storage.barrier",
    "kestrel.storage.folder_resources",
    "kestrel.storage.log.folder_storage",
    "kestrel.storage.log.read_ahead",
    "kestrel.storage.log.sync_scheduler",
    "kestrel.storage.journal.storage",
    "kestrel.storage.journal.queue",
    "kestrel.storage.journal.maintenance",
    "kestrel.storage.journal.rewriter",
    "kestrel.storage.total_memory",
    "kestrel.storage.uncommitted_budget",
    "kestrel.storage.window",
    "kestrel.journal.records",
    "kestrel.journal.cursor",
    "kestrel.journal.writer",
    "kestrel.scroll.cursor",
)


def source_of(module: str) -> Path:
    """Return the path of a module's source, relative to this file."""
    return Path(*module.split(".")).with_suffix(".py")


def imported_by(module: str) -> list[str]:
    """Return the kestrel modules that a module imports from. Their constants are compiled into it."""
    names = []
    for node in ast.walk(ast.parse((ROOT / source_of(module)).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith("kestrel.") and (ROOT / source_of(name)).is_file()]


def digest_of(source: Path) -> str:
    """Return the digest of a module's source, and of its version in C if there is one (kestrel/compiled.py)."""
    parts = [path.read_bytes() for path in (source, source.with_suffix(".c")) if path.exists()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


# A change of any of these modules makes the extension stale (kestrel/compiled.py).
NOTED = tuple(dict.fromkeys([*COMPILED, *(name for module in COMPILED for name in imported_by(module))]))

# Computed before the compiler reads the sources, so that a source that changes during the build makes it stale.
DIGESTS = {module: digest_of(ROOT / source_of(module)) for module in NOTED}


# Hidden symbols let calls within the extension be direct or inlined. With 16 requests in flight, each takes 10 % less.
UNIX_FLAGS = ["-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt"]
# Looking for warnings in the C code of mypyc takes almost half of the compiler's time.
GENERATED_CODE_FLAGS = [*UNIX_FLAGS, "-Wno-all"]


def extensions() -> list:
    """Return the extensions to build: none without mypyc, or if this command does not build."""
    if WANTED == "none" or BUILDING.isdisjoint(sys.argv):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        if WANTED == "require":
            raise
        return []
    sources = [str(source_of(module)) for module in COMPILED]
    try:
        found = mypycify(
            ["--config-file=setup.cfg", *sources], group_name="kestrel", debug_level="0", strip_asserts=False
        )
    except SystemExit:
        # mypycify exits on a type error, for example with a newer Twisted.
        if WANTED == "require":
            raise
        print("The extension cannot be compiled (see above). Its modules will run as Python.", file=sys.stderr)
        return []
    if os.name == "posix":
        for extension in found:
            extension.extra_compile_args = [*extension.extra_compile_args, *GENERATED_CODE_FLAGS]
        found.append(Extension("kestrel.net.socket_io", ["kestrel/net/socket_io.c"], extra_compile_args=UNIX_FLAGS))
    for extension in found:
        extension.optional = WANTED != "require"
    return found


class BuildAll(build_ext):
    """A build that keeps either the complete extension or none of it, and records the digests of its sources."""

    def run(self) -> None:
        """Delete the record of an earlier build, then compile."""
        folder = ROOT if self.inplace else Path(self.build_lib)
        note = folder / "kestrel" / "compiled.json"
        note.unlink(missing_ok=True)
        super().run()
        built = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        if all(path.exists() for path in built):
            note.write_text(json.dumps(DIGESTS, indent=1) + "\n")
        else:
            for path in built:
                path.unlink(missing_ok=True)


os.chdir(ROOT)
ext_modules = extensions()
setup(ext_modules=ext_modules, cmdclass={"build_ext": BuildAll} if ext_modules else {})
