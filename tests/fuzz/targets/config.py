"""Configuration files."""

from __future__ import annotations

from collections.abc import Iterator

from kestrel.config.dump import alias_config, queue_config
from kestrel.config.load import ConfigError, load
from kestrel.config.model import Config
from kestrel.config.resolved import ResolvedConfig
from tests.fuzz.scratch_folder import scratch_folder
from tests.fuzz.target import Target
from tests.fuzz.targets.units import SETTINGS


def check(data: bytes) -> None:
    """Check that a file gives a `Config` that can be dumped, or problems that are one line each."""
    with scratch_folder() as folder:
        folder.write_bytes(data)
        try:
            config = load(folder)
        except ConfigError as error:
            assert error.problems
            assert str(error).startswith(f"{folder}:\n")
            assert all(character >= " " for problem in error.problems for character in problem), error.problems
            return
    assert isinstance(config, Config)
    resolved = ResolvedConfig(config)
    for name in (b"work", b"work+a", *config.queues):
        assert all(isinstance(value, str) for _, value in queue_config(resolved.settings_for(name)))
    for alias in config.aliases.values():
        assert all(isinstance(value, str) for _, value in alias_config(alias))


def words() -> Iterator[bytes]:
    """Yield the name of every setting, and values of every kind."""
    yield from (f"\n{setting.kestrel_name} = ".encode() for setting in SETTINGS)
    yield from (
        b"\n[default]\n", b"\n[[queues]]\nname = ", b"\n[[aliases]]\nname = ", b"\n[admin]\n", b"\n[zookeeper]\n",
        b"\n[logging]\n", b"\n[tls]\n", b'"none"', b'"never"', b'"16MiB"', b'"1m30s"', b"true", b"[]", b"{}",
        b'["a", "b"]', b"nan",
        b"1979-05-27", b"07:32:00", b'"a+b"', b'"world:anyone:r"', b'"""', b"'''", b"\\u0000", b"\\U0010FFFF", b"1e400",
    )  # fmt: skip


TARGET = Target(check, words, max_bytes=4096)
