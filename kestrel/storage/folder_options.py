"""Parsing the arguments and options of storages that keep their queues in a folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kestrel.config.units import parse_size
from kestrel.errors import BadStorageArgument


def folder_argument(storage: str, argument: str) -> bytes:
    """Return the path of the folder. Raises `BadStorageArgument` if the argument is empty."""
    if not argument:
        raise BadStorageArgument(f"{storage}: needs a folder, as in {storage}:/var/spool/kestrel")
    return (argument.rstrip("/") or "/").encode("utf-8", "surrogateescape")


def refuse_other_options(storage: str, options: Mapping[str, str], known: Collection[str]) -> None:
    """Raise `BadStorageArgument` if an option is not in `known`."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        knows = ", ".join(sorted(known))
        raise BadStorageArgument(f"{storage}: has no option {', '.join(unknown)}; it knows {knows}")


def reserve_option(storage: str, options: Mapping[str, str]) -> int:
    """Return the size of the disk reserve in bytes. Raises `BadStorageArgument` if it is not a size."""
    reserve = options.get("reserve", "16MiB")
    try:
        return int(reserve) if reserve.isdigit() else parse_size(reserve)
    except ValueError as error:
        raise BadStorageArgument(f"{storage}: reserve: {error}") from error
