"""What the described strings of backends have in common that keep their queues in a folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kestrel.config.units import parse_size
from kestrel.errors import BadStorageArgument


def folder_argument(storage: str, argument: str) -> bytes:
    """The path of the folder, or `BadStorageArgument`."""
    if not argument:
        raise BadStorageArgument(f"{storage}: needs a folder, as in {storage}:/var/spool/kestrel")
    return (argument.rstrip("/") or "/").encode("utf-8", "surrogateescape")


def refuse_other_options(storage: str, options: Mapping[str, str], known: Collection[str]) -> None:
    """Raise `BadStorageArgument` when there is an option that the storage does not know."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        knows = ", ".join(sorted(known))
        raise BadStorageArgument(f"{storage}: has no option {', '.join(unknown)}; it knows {knows}")


def reserve_option(storage: str, options: Mapping[str, str]) -> int:
    """The disk space to be put by, in bytes, or `BadStorageArgument`."""
    reserve = options.get("reserve", "16MiB")
    try:
        return int(reserve) if reserve.isdigit() else parse_size(reserve)
    except ValueError as error:
        raise BadStorageArgument(f"{storage}: reserve: {error}") from error
