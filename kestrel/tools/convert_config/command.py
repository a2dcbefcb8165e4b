"""Command line of kestrel-convert-config: convert a configuration of Kestrel, written in Scala, to this server's."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, cast

import kestrel
from kestrel.config.load import ConfigError, loads
from kestrel.disk.files import AtomicFile, Disk
from kestrel.tools.arguments import flag, make_parser, option, path_name
from kestrel.tools.convert_config.config_converter import ConfigConverter, ConfigRemark, ConvertedConfig
from kestrel.tools.convert_config.scala_parser import ScalaError, parse
from kestrel.tools.formatting import show_path, show_text
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, BadUsage, Output, explain_os_error, print_error, run

TOOL: Final = "kestrel-convert-config"

LARGEST_BYTES: Final = 1024 * 1024
"""Maximum size of a configuration in bytes."""

_STANDARD_INPUT: Final = "-"

_DESCRIPTION: Final = """\
Convert a configuration of Kestrel (2.0 and later), such as config/production.scala, to one of this server, in TOML. The
server's loader checks the result. The Scala code is not executed. Settings that cannot be converted are listed with
their lines, on standard error and in comments of the TOML."""

_EPILOG: Final = """\
examples:
  kestrel-convert-config -o /etc/kestrel/production.toml /opt/kestrel/config/production.scala
  kestrel-convert-config - <production.scala | less
  twistd kestrel --config /etc/kestrel/production.toml --validate

exit status: 0 if every setting that matters was converted; 1 if something was left out, which you should review, or the
file could not be written; 2 if the command line is invalid, or the input cannot be converted: then nothing is
written."""


def main(argv: Sequence[str] | None = None, disk: Disk | None = None) -> int:
    """Run the command and return its exit status."""
    return run(TOOL, lambda: _convert(_parser().parse_args(argv), disk or Disk()))


def _parser() -> ArgumentParser:
    return make_parser(
        TOOL,
        _DESCRIPTION,
        _EPILOG,
        option("source", "PRODUCTION.SCALA", path_name, "the configuration of Kestrel; - for standard input"),
        option("-o --output", "FILE", path_name, "where to write the TOML (default: standard output)"),
        flag("--force", "replace FILE if it exists"),
    )


def _convert(arguments: Namespace, disk: Disk) -> int:
    source: str = arguments.source
    path = None if arguments.output is None else os.fsencode(arguments.output)
    if path is not None and os.path.lexists(path) and (not arguments.force or os.path.isdir(path)):
        raise BadUsage(f"{show_path(path)} exists already: name another file, or use --force")
    folder = None if path is None else os.path.dirname(path) or b"."
    if folder is not None and not os.path.isdir(folder):
        raise BadUsage(f"there is no folder {show_path(folder)} for the file: make it first")
    name = "standard input" if source == _STANDARD_INPUT else show_path(os.fsencode(source))
    text, taken = convert_text(_read(source, name), name)
    for remark in taken.remarks:
        print_error(TOOL, f"{name}, {_said(remark)}")
    if path is None:
        output = Output()
        output.exactly(text.encode())
        output.flush()
    else:
        _write(disk, path, text.encode())
    return EX_FOUND if any(remark.is_left_out for remark in taken.remarks) else EX_OK


def _write(disk: Disk, path: bytes, data: bytes) -> None:
    """Write the file atomically. The temporary file gets an unused name, so that no other file is overwritten."""
    temporary = next(name for number in count() if not os.path.lexists(name := b"%b.new%d" % (path, number)))
    try:
        AtomicFile(disk, path, temporary).write(data)
    except BaseException:
        with suppress(OSError):
            disk.erase(temporary)
        raise


def convert_text(text: str, name: str) -> tuple[str, ConvertedConfig]:
    """Convert the text of a Scala configuration. Return the TOML, and the tables and remarks it was made from.

    `name` is the source for messages. Raise `ToolFailed` if the text cannot be converted.
    """
    try:
        taken = ConfigConverter().convert(parse(text))
    except ScalaError as error:
        raise BadUsage(f"{name}, {error}") from None
    toml = "".join(f"{line}\n" for line in _lines(taken, name))
    try:
        loads(toml, name)
    except ConfigError as error:
        problems = "\n  ".join(show_text(problem) for problem in error.problems)
        raise BadUsage(f"{name} has settings that this server rejects; fix them:\n  {problems}") from None
    return toml, taken


def _lines(taken: ConvertedConfig, name: str) -> Iterator[str]:
    yield f"# By {TOOL} {kestrel.__version__} from {name}"
    left_out = [remark for remark in taken.remarks if remark.is_left_out]
    yield from _remarks("Left out, please review:", left_out)
    yield from _remarks("Notes:", [remark for remark in taken.remarks if not remark.is_left_out])
    yield ""
    yield from _toml_lines(taken.tables)


def _remarks(head: str, remarks: Iterable[ConfigRemark]) -> Iterator[str]:
    if sentences := [show_text(str(remark)) for remark in remarks]:
        yield from (f"# {each}".rstrip() for each in ("", head, *sentences))


def _toml_lines(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a TOML file: single settings, then tables, then lists of tables."""
    yield from _settings(tables)
    for name, table in tables.items():
        if isinstance(table, dict) and table:
            yield from ("", f"[{name}]", *_settings(table))
    for name, listed in tables.items():
        if _is_tables(listed):
            for table in listed:
                yield from ("", f"[[{name}]]", *_settings(table))


def _settings(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        if not isinstance(value, dict) and not _is_tables(value):
            # JSON is TOML here, except for this character: numbers, booleans, texts, and lists of texts.
            yield f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _said(remark: ConfigRemark) -> str:
    return ("left out: " if remark.is_left_out else "") + show_text(str(remark))


def _read(source: str, name: str) -> str:
    try:
        if source == _STANDARD_INPUT:
            if sys.stdin is None:
                raise BadUsage("standard input is closed: name a file")
            data = cast(bytes, sys.stdin.buffer.read(LARGEST_BYTES + 1))
        else:
            with open(source, "rb") as file:
                data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise BadUsage(f"{name} cannot be read: {error.strerror or explain_os_error(error)}") from None
    if len(data) > LARGEST_BYTES:
        raise BadUsage(f"{name} has more than {LARGEST_BYTES} bytes: is it a configuration?")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadUsage(f"{name}, line {line}: this is not UTF-8") from None


if __name__ == "__main__":
    sys.exit(main())
