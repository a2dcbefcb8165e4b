"""The optional extension: modules of the hot path, made C by mypyc from the Python that they are. All else: setup.cfg.

Where it cannot be built (no compiler, no headers) the same modules run as Python. KESTREL_EXTENSION=require in the
environment of the build makes that an error, =none leaves it out.
"""

import ast
import hashlib
import json
import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
WANTED = os.environ.get("KESTREL_EXTENSION", "optional")
BUILDING = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install", "develop"}

# In the order in which a message travels.
COMPILED = (
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
    "kestrel.protocols.finagle",
    "kestrel.protocols.thrift",
    "kestrel.protocols.thrift_binary",
    "kestrel.session.access",
    "kestrel.session.codecs",
    "kestrel.session.idle_timeout",
    "kestrel.session.gets",
    "kestrel.session.outbox",
    "kestrel.session.puts",
    "kestrel.session.open_reads",
    "kestrel.session.refusal_log",
    "kestrel.session.session_context",
    "kestrel.session.session",
    "kestrel.session.request_deadlines",
    "kestrel.session.client_transport",
    "kestrel.queues.counters",
    "kestrel.queues.expiry",
    "kestrel.queues.fanout",
    "kestrel.queues.head",
    "kestrel.queues.limits",
    "kestrel.queues.manager",
    "kestrel.queues.queue_histograms",
    "kestrel.queues.open_reads",
    "kestrel.queues.queue",
    "kestrel.queues.context",
    "kestrel.queues.status",
    "kestrel.queues.tick_scheduler",
    "kestrel.queues.waiters",
    "kestrel.storage.barrier",
    "kestrel.storage.full_disk",
    "kestrel.storage.journal.storage",
    "kestrel.storage.journal.queue",
    "kestrel.storage.journal.sync",
    "kestrel.storage.journal.upkeep",
    "kestrel.storage.open_files",
    "kestrel.storage.runs",
    "kestrel.storage.total_memory",
    "kestrel.storage.uncommitted",
    "kestrel.storage.window",
    "kestrel.journal.records",
    "kestrel.journal.run_cursor",
    "kestrel.journal.writer",
)


def source_of(module: str) -> Path:
    """Relative to this file."""
    return Path(*module.split(".")).with_suffix(".py")


def imported_by(module: str) -> list[str]:
    """Those of our modules that it imports from. Their constants are compiled into it."""
    names = []
    for node in ast.walk(ast.parse((ROOT / source_of(module)).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith("kestrel.") and (ROOT / source_of(name)).is_file()]


# A change of any of these makes the extension an old one (kestrel/compiled.py).
NOTED = tuple(dict.fromkeys([*COMPILED, *(name for module in COMPILED for name in imported_by(module))]))

# Taken before the compiler reads them: an extension of what changed meanwhile is an old one.
DIGESTS = {module: hashlib.sha256((ROOT / source_of(module)).read_bytes()).hexdigest() for module in NOTED}


# What is called only from within the extension is called directly, and may be inlined. With 16 requests in flight that
# takes a tenth off each.
UNIX_FLAGS = ["-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt"]


def extensions() -> list:
    """What is to be compiled; nothing where mypyc is missing or nobody is building."""
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
    except SystemExit:  # so it ends where the types do not fit, of a newer Twisted for example
        if WANTED == "require":
            raise
        print("The extension cannot be compiled: the same modules will run as Python.", file=sys.stderr)
        return []
    for extension in found:
        extension.optional = WANTED != "require"
        if os.name == "posix":
            extension.extra_compile_args = [*extension.extra_compile_args, *UNIX_FLAGS]
    return found


class BuildAll(build_ext):
    """All of the extension or nothing of it, and a note which sources it was made of."""

    def run(self) -> None:
        """Compile; what was left of an earlier build goes first."""
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
