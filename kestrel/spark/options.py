"""Spark options, whose names are case-insensitive, and the errors of the Spark integration."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Self

from kestrel.config.units import format_duration_ms, parse_duration_ms, parse_size
from kestrel.errors import KestrelError


class SourceFailed(KestrelError):
    """An option, path, column or server prevents reading or writing. The text says what to do."""


class BadJournal(KestrelError):
    """A damaged, incomplete or missing file in FAILFAST mode, or in a stream that would lose its rows for good."""


PATHS: Final = ("path", "paths")
"""Options that Spark sets itself for ``load(...)``; error messages do not list them."""

_TRUTHS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_BYTES: Final = re.compile(r"[0-9]{1,18}")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?")

LONGEST_S: Final = 24 * 3600
"""Upper bound of options that are durations."""


def has_paths(given: Mapping[str, str]) -> bool:
    """Return True if ``load(...)`` was given a path."""
    return any(name.lower() in PATHS for name in given)


STARTING_OFFSETS: Final = "startingOffsets"


def parse_time_s(text: str) -> float:
    """Return a time in seconds since 1970, in UTC unless the text has an offset. Raises ValueError or OverflowError."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


class OptionValues(dict[str, str]):
    """The given options by name. All methods raise `SourceFailed`."""

    @classmethod
    def checked(
        cls, given: Mapping[str, str], names: Sequence[str], aliases: Mapping[str, str] | None = None
    ) -> Self:
        """Return the options under the spelling used in `names`. `aliases` maps other names to these.

        An unknown option is refused, and so is one that is given under two names.
        """
        known = {name.lower(): name for name in names}
        known |= {alias.lower(): name for alias, name in (aliases or {}).items()}
        values = cls()
        for name, value in given.items():
            if name.lower() not in known:
                near = difflib.get_close_matches(name.lower(), known, 1)
                told = ", ".join(each for each in names if each not in PATHS)
                hint = f"; did you mean {known[near[0]]}?" if near else f": the options are {told}"
                raise SourceFailed(f"there is no option {name}{hint}")
            ours = known[name.lower()]
            if ours in values:
                raise SourceFailed(f"{ours} is given twice, once under another name: leave out one of the two")
            values[ours] = value
        return values

    def choice(self, name: str, *choices: str) -> str:
        """Return one of `choices`, compared without case; the first one is the default."""
        value = self.get(name, choices[0])
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise SourceFailed(f"{name} must be {' or '.join(choices)}, not {value!r}")

    def boolean(self, name: str, default: bool) -> bool:
        """Return a true or false option."""
        value = self.get(name, str(default)).lower()
        if value not in _TRUTHS:
            raise SourceFailed(f"{name} must be true or false, not {value!r}")
        return _TRUTHS[value]

    def positive(self, name: str, default: int) -> int:
        """Return an integer option from 1 to 999,999,999."""
        value = self.get(name, str(default))
        if not _NUMBER.fullmatch(value) or not int(value):
            raise SourceFailed(f"{name} must be a whole number of at least 1, not {value!r}")
        return int(value)

    def size(self, name: str, default: int) -> int:
        """Return a size in bytes, written as a number or as a size such as ``16MiB``."""
        if name not in self:
            return default
        value = self[name]
        try:
            return parse_size(int(value) if _BYTES.fullmatch(value) else value)
        except ValueError as error:
            raise SourceFailed(f"{name}: {error}") from None

    def seconds(self, name: str, default_s: float) -> float:
        """Return a duration in seconds of at most 24 hours, from ``500ms`` or ``2m``, or a number of seconds."""
        if name not in self:
            return default_s
        value = self[name].strip()
        try:
            time_s = parse_duration_ms(float(value) if _SECONDS.fullmatch(value) else value) / 1000
        except ValueError as error:
            raise SourceFailed(f"{name}: {error}") from None
        if time_s > LONGEST_S:
            raise SourceFailed(f"{name} is at most {format_duration_ms(LONGEST_S * 1000)}, not {value}")
        return time_s

    def time_s(self, name: str, kinds: str = "a time") -> float | None:
        """Return a time in seconds since 1970, in UTC unless the text has an offset. `kinds` says what is possible."""
        if name not in self:
            return None
        value = self[name]
        try:
            return parse_time_s(value)
        except ValueError:
            raise SourceFailed(f"{name} must be {kinds} such as 2026-01-31T12:00:00, in UTC, not {value!r}") from None

    def start_ms(self) -> float:
        """Return the time of the first items of a new stream in ms since 1970.

        This is 0 for all items, and infinity for future items.
        """
        match self.get(STARTING_OFFSETS, "earliest").lower():
            case "earliest":
                return 0
            case "latest":
                return math.inf
        time_s = self.time_s(STARTING_OFFSETS, "earliest, latest or a time")
        assert time_s is not None
        return max(0, time_s * 1000)
