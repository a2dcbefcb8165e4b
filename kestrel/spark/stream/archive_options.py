"""The options of an archive stream: ``spark.readStream.format("kestrel").load("/srv/archive")``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kestrel.spark.failures import SourceFailed
from kestrel.spark.option_values import PATHS, check_option_names, parse_boolean, parse_positive
from kestrel.spark.table.options import SourceOptions, parse_options

MOST_FILES: Final = 1000
"""Default number of files in a batch. A writer file has 16 MiB by default."""

OF_STREAMS: Final = ("index", "maxFiles", "ignoreMissingFiles")

_OF_TABLES: Final = (*PATHS, "server", "queue", "payload", "mode", "partitionBytes", "parallelism")
"""Options with the same meaning as for a table."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The parsed options of an archive stream."""

    table: SourceOptions
    index: str
    """Absolute path of the index of files seen."""
    most_files: int = MOST_FILES
    ignores_missing: bool = False


def is_archive_stream(given: Mapping[str, str]) -> bool:
    """Return True if an option occurs that only archive streams have."""
    names = {name.lower() for name in OF_STREAMS}
    return any(name.lower() in names for name in given)


def parse_archive_options(given: Mapping[str, str]) -> ArchiveOptions:
    """Parse Spark's options, whose names are case-insensitive. Raises `SourceFailed`."""
    values = check_option_names(given, (*_OF_TABLES, *OF_STREAMS))
    table = parse_options({name: value for name, value in values.items() if name in _OF_TABLES})
    index = values.get("index")
    if index is None:
        raise SourceFailed(
            "a stream of an archive needs an index of the files seen:"
            ' option("index", "/srv/checkpoints/audit.index"), a separate file beside the checkpoint'
        )
    if not os.path.isabs(index):
        raise SourceFailed(f"index must be an absolute path such as /srv/checkpoints/audit.index, not {index!r}")
    return ArchiveOptions(
        table=table,
        index=index,
        most_files=parse_positive(values, "maxFiles", MOST_FILES),
        ignores_missing=parse_boolean(values, "ignoreMissingFiles", False),
    )
