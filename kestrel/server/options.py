"""The command line: ``twistd [options] kestrel [these]``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from textwrap import fill
from typing import Any, Final, NoReturn

from attrs import evolve
from twisted.python import usage

from kestrel import __version__
from kestrel.config.load import ConfigError, load
from kestrel.config.model import Config
from kestrel.config.resolved import masked_queues
from kestrel.escaping import show_name
from kestrel.server.endpoints import ADMIN, SERVED, endpoints_to_serve, parse_endpoint
from kestrel.server.service import KestrelService, settings_ignored_by_storage
from kestrel.server.startup_errors import EX_CONFIG, CannotServe
from kestrel.storage.interfaces import CAPABILITIES, IStorageFactory
from kestrel.storage.plugins import list_plugins
from kestrel.storage.registry import FACTORIES

MIN_COLUMNS: Final = 40
"""Minimum width of the output; a narrower terminal breaks the lines itself."""

EXAMPLES: Final = """
examples:
  twistd --nodaemon kestrel                       in the foreground, until Ctrl-C
  twistd --nodaemon kestrel --storage memory: --memcache tcp:22134:interface=127.0.0.1
  twistd kestrel --config /etc/kestrel/production.toml --validate
  twistd --pidfile /run/kestrel.pid kestrel --config /etc/kestrel/production.toml
  kill $(cat /run/kestrel.pid)                    stops that server
"""


class Options(usage.Options):
    """The server's command-line options, which override the configuration file."""

    synopsis = "[--config FILE] [options]"
    longdesc = (
        "A durable message queue server. Without --config it listens on Kestrel's ports on all addresses and keeps"
        " its queues in your state directory (~/.local/state/kestrel). It runs in the background unless you pass"
        " --nodaemon to twistd. `twistd --help` lists twistd's own options, such as --logfile, --pidfile and --uid."
        " Exit statuses: 78 the configuration is wrong; in the foreground also 69 a port cannot be listened on, 73 a"
        " folder cannot be written or a storage cannot be opened, 75 another server owns the folder or the storage. If"
        " a daemon does not start, twistd exits with 1. Errors that occur in the background are reported in the log and"
        " in the daemon's own exit status."
    )
    optParameters = [
        [
            "config",
            "c",
            None,
            "The configuration file (TOML). Examples are in tap-configs/, installed as share/kestrel/tap-configs/.",
        ],
        [
            "storage",
            "s",
            None,
            "Where queues are kept, as name:argument?option=value: journal:/var/spool/kestrel,"
            " scroll:/var/spool/kestrel?archive=/srv/archive (an item put to a parent queue is written once for all its"
            " children), memory:, postgres:host=db1,db2 dbname=kestrel, or one of another distribution (see"
            " --help-storage).",
        ],
    ]
    compData = usage.Completions(optActions={"config": usage.CompleteFiles("*.toml")})
    optFlags = [["validate", None, "Check the configuration, report errors and settings without effect, and exit."]]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.endpoints: dict[str, list[str]] = {each: [] for each in SERVED}
        self.trusted: dict[str, list[str]] = {}
        self.settings = Config()

    def getUsage(self, width: int | None = None) -> str:
        """Append the examples to the usage text, without wrapping them."""
        return super().getUsage(width) + EXAMPLES

    def opt_memcache(self, endpoint: str) -> None:
        """Serve memcache on this endpoint, such as tcp:22133 (repeatable; replaces the configured port)."""
        self.endpoints["memcache"].append(endpoint)

    def opt_text(self, endpoint: str) -> None:
        """Serve the text protocol on this endpoint, such as tcp:2222 (repeatable; replaces the configured port)."""
        self.endpoints["text"].append(endpoint)

    def opt_thrift(self, endpoint: str) -> None:
        """Serve thrift on this endpoint, such as tcp:2229 (repeatable; replaces the configured port)."""
        self.endpoints["thrift"].append(endpoint)

    def opt_trust(self, given: str) -> None:
        """Serve a protocol on an additional endpoint whose clients are administrators, such as
        memcache=unix:/run/kestrel/admin.sock:mode=600 (repeatable)."""
        protocol, is_there, endpoint = given.partition("=")
        if protocol not in SERVED or not is_there:
            protocols = ", ".join(SERVED)
            raise usage.UsageError(f"--trust needs PROTOCOL=ENDPOINT, with one of {protocols}; not {given!r}")
        self.trusted.setdefault(protocol, []).append(endpoint)

    def opt_admin(self, endpoint: str) -> None:
        """Serve the admin pages on this endpoint, such as tcp:2223:interface=127.0.0.1 (repeatable; replaces the
        configured port).
        """
        self.endpoints[ADMIN].append(endpoint)

    def opt_help_storage(self) -> NoReturn:
        """List all storages with their guarantees, and broken ones of other distributions, and exit."""
        print(storage_help(shutil.get_terminal_size().columns), end="")
        sys.exit(0)

    def opt_version(self) -> NoReturn:
        """Show kestrel's version and exit."""
        print(f"kestrel {__version__}")
        sys.exit(0)

    def parseArgs(self, *arguments: str) -> None:
        """Raise `UsageError` for any positional argument."""
        if arguments:
            raise usage.UsageError(
                f"unexpected argument {arguments[0]!r}: kestrel takes only options; --help lists them"
            )

    def postOptions(self) -> None:
        """Load the configuration. Exit if it is wrong, or after printing the result of --validate."""
        for option in ("config", "storage"):
            if self[option] == "":  # the shell's expansion of an unset variable
                raise usage.UsageError(f"--{option} is empty: give a value, or omit it")
        try:
            self.settings = self.load_config()
        except ConfigError as error:
            print(f"kestrel: {error}", file=sys.stderr)
            sys.exit(EX_CONFIG)
        if self["validate"]:
            self._check_what_is_named()
            print("The configuration is valid.")
            for setting in settings_ignored_by_storage(self.settings):
                print(f"It sets {setting}, which has no effect with this storage.")
            for name in masked_queues(self.settings):
                print(f"Its alias {show_name(name)} masks the queue of that name.")
            log_folder = os.path.dirname(os.path.abspath(self.settings.logging.file or ""))
            if not os.path.isdir(log_folder):
                print(f"The folder of its log, {log_folder}, does not exist: create it first.")
            sys.exit(0)

    def _check_what_is_named(self) -> None:
        """Exit with an error if an endpoint or the storage is invalid. Opens nothing."""
        from twisted.internet import reactor

        try:
            KestrelService(reactor, self.settings, endpoints=self.endpoints, trusted=self.trusted)
            served = endpoints_to_serve(self.settings, self.endpoints)
            for endpoint in chain.from_iterable((*served.values(), *self.trusted.values())):
                parse_endpoint(reactor, endpoint)
        except CannotServe as error:
            print(f"kestrel: {error}", file=sys.stderr)
            sys.exit(error.status)

    def load_config(self) -> Config:
        """Read the configuration file, and return its configuration with --storage applied. Raises `ConfigError`."""
        config = Config() if self["config"] is None else load(self["config"])
        return config if self["storage"] is None else evolve(config, storage=self["storage"])

    def twistd(self, name: str) -> Any:
        """Return an option of twistd itself, or None outside of twistd."""
        parent = getattr(self, "parent", None)
        return None if parent is None else parent.get(name)


def storage_help(columns: int) -> str:
    """Return the output of --help-storage, wrapped to `columns`, but not below `MIN_COLUMNS`."""
    columns = max(columns, MIN_COLUMNS)
    plugins = list_plugins(FACTORIES)
    lines = ["Storages, by the word before the colon of --storage:"]
    for factory in FACTORIES.values():
        lines += _about(factory, "built in", columns)
    for factory in plugins.usable:
        lines += _about(factory, f"from {factory.origin}", columns)
    lines += _list("Ignored:", plugins.ignored, columns)
    lines += _list("Broken:", plugins.broken, columns)
    return "\n".join(lines) + "\n"


def _about(factory: IStorageFactory, origin: str, columns: int) -> Iterator[str]:
    yield ""
    yield _wrapped(f"{factory.name} ({origin})", columns, "", "  ")
    yield _wrapped(" ".join(factory.help.split()), columns, "  ", "  ")
    for capability in sorted(factory.capabilities):
        yield _item(f"{capability}: {CAPABILITIES[capability]}", columns)


def _list(heading: str, sentences: Sequence[str], columns: int) -> Iterator[str]:
    if sentences:
        yield ""
        yield heading
        yield from (_item(sentence, columns) for sentence in sentences)


def _item(text: str, columns: int) -> str:
    return _wrapped(text, columns, "  - ", "    ")


def _wrapped(text: str, columns: int, first: str, others: str) -> str:
    """Wrap text without breaking paths and options, so that they can be copied."""
    return fill(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
