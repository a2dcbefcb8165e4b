"""What a person may say of an archive that is tailed: the options of ``spark.readStream.format("kestrel")``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kestrel.spark.failures import SourceFailed
from kestrel.spark.option_values import PATHS, check_option_names, parse_boolean, parse_positive
from kestrel.spark.table.options import SourceOptions, parse_options

MOST_FILES: Final = 1000
"""In a batch. A writer file has 16 MiB, unless it was set otherwise."""

OF_STREAMS: Final = ("index", "maxFiles", "ignoreMissingFiles")

_OF_TABLES: Final = (*PATHS, "server", "queue", "payload", "mode", "partitionBytes", "parallelism")
"""These mean what they mean for a table."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """All of them, understood."""

    table: SourceOptions
    index: str
    """The path of the file that says what came."""
    most_files: int = MOST_FILES
    ignores_missing: bool = False


def is_archive_stream(given: Mapping[str, str]) -> bool:
    """Whether some of the options are of a stream of files, and of no table."""
    names = {name.lower() for name in OF_STREAMS}
    return any(name.lower() in names for name in given)


def parse_archive_options(given: Mapping[str, str]) -> ArchiveOptions:
    """Spark's options, whose names come in any case. Raises `SourceFailed`."""
    values = check_option_names(given, (*_OF_TABLES, *OF_STREAMS))
    table = parse_options({name: value for name, value in values.items() if name in _OF_TABLES})
    index = values.get("index")
    if index is None:
        raise SourceFailed(
            "a stream of an archive keeps an index of the files that came:"
            ' option("index", "/srv/checkpoints/audit.index"), a file of its own, beside its checkpoint'
        )
    if not os.path.isabs(index):
        raise SourceFailed(f"index is the absolute path of a file, as /srv/checkpoints/audit.index, not {index!r}")
    return ArchiveOptions(
        table=table,
        index=index,
        most_files=parse_positive(values, "maxFiles", MOST_FILES),
        ignores_missing=parse_boolean(values, "ignoreMissingFiles", False),
    )
