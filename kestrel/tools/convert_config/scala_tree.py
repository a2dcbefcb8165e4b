"""Syntax tree of a configuration in Scala."""

from __future__ import annotations

from enum import Enum, auto
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

from kestrel.config.units import GIB, KIB, MAX_AMOUNT, MIB, TIB, format_duration_ms, format_size


class ScalaLiteral(NamedTuple):
    """A whole number, or a string without its quotes."""

    line: int
    value: int | str


class ScalaName(NamedTuple):
    """A single name: ``true``, ``None``, ``Up``."""

    line: int
    word: str


class ScalaMember(NamedTuple):
    """A member selection: ``16.megabytes``, ``Duration.MaxValue``."""

    line: int
    of: Expression
    word: str


class ScalaCall(NamedTuple):
    """A call: ``Some(1)``, ``List("a", "b")``."""

    line: int
    of: Expression
    arguments: tuple[Expression, ...]


class ScalaTuple(NamedTuple):
    """A tuple: ``("user", "password")``."""

    line: int
    parts: tuple[Expression, ...]


class ScalaConsList(NamedTuple):
    """A list joined by ``::``, ``:::`` or ``++``."""

    line: int
    parts: tuple[Expression, ...]


class ScalaNew(NamedTuple):
    """An object creation: ``new Type(arguments) with Others { body }``."""

    line: int
    type: str
    arguments: tuple[Expression, ...]
    others: tuple[str, ...]
    body: tuple[Statement, ...]


Expression: TypeAlias = ScalaLiteral | ScalaName | ScalaMember | ScalaCall | ScalaTuple | ScalaConsList | ScalaNew


class ScalaAssignment(NamedTuple):
    """An assignment: ``admin.httpPort = 2223``.

    `path` holds the names before the ``=``, and `last_line` is the line where the value ends.
    """

    line: int
    last_line: int
    path: tuple[str, ...]
    value: Expression
    source: str
    """Source text of the statement."""


class UnreadStatement(NamedTuple):
    """A statement outside the grammar of configurations."""

    line: int
    last_line: int
    source: str


Statement: TypeAlias = ScalaAssignment | UnreadStatement


Value = bool | int | str | list[str]


class SpecialValue(Enum):
    """A result that is not a TOML value."""

    NOTHING = auto()
    """``None``, or the largest size or time: no limit."""
    LARGEST_INT = auto()
    """``Int.MaxValue``, which can mean no limit. With a unit it is an ordinary number."""
    NO_VALUE = auto()
    """An expression that only Scala could evaluate."""


_SIZES: Final = {
    unit + plural: size
    for unit, size in (("byte", 1), ("kilobyte", KIB), ("megabyte", MIB), ("gigabyte", GIB), ("terabyte", TIB))
    for plural in ("", "s")
}
_DURATIONS_MS: Final = {
    unit + plural: duration_ms
    for unit, duration_ms in (
        ("nanosecond", Fraction(1, 1_000_000)),
        ("microsecond", Fraction(1, 1_000)),
        ("millisecond", Fraction(1)),
        ("second", Fraction(1_000)),
        ("minute", Fraction(60_000)),
        ("hour", Fraction(3_600_000)),
        ("day", Fraction(86_400_000)),
    )
    for plural in ("", "s")
} | {"millis": Fraction(1)}
_LARGEST_INT: Final = 2**31 - 1
_ENDLESS: Final = ("MaxValue", "Top", "forever", "Forever")


def unwrap_some(expression: Expression) -> Expression:
    """Return the content of ``Some(...)``, or any other expression unchanged."""
    match expression:
        case ScalaCall(_, ScalaName(_, "Some"), (inner,)):
            return unwrap_some(inner)
        case _:
            return expression


def last_name(expression: Expression) -> str | None:
    """Return the last name of an expression, such as ``INFO`` of ``Level.INFO``, or None if it is not a name."""
    match expression:
        case ScalaName(_, word) | ScalaMember(_, _, word):
            return word
        case _:
            return None


def parts(expression: Expression) -> list[Expression]:
    """Return the members of a list in any notation. A single expression is a list of one."""
    match unwrap_some(expression):
        case ScalaName(_, "Nil" | "None"):
            return []
        case ScalaMember(_, ScalaName(_, "List" | "Seq"), "empty"):
            return []
        case ScalaCall(_, ScalaName(_, "List" | "Seq"), members):
            return [each for member in members for each in parts(member)]
        case ScalaConsList(_, members):
            return [each for member in members for each in parts(member)]
        case one:
            return [one]


def value(expression: Expression) -> Value | SpecialValue:
    """Return the value of an expression.

    It is `SpecialValue.NO_VALUE` for a duration with a fraction of a millisecond, or an amount out of bounds.
    """
    match unwrap_some(expression):
        case ScalaLiteral(_, literal):
            return literal
        case ScalaName(_, "true"):
            return True
        case ScalaName(_, "false"):
            return False
        case ScalaName(_, "None"):
            return SpecialValue.NOTHING
        case ScalaMember(_, ScalaLiteral(_, int(number)), unit):
            return _with_unit(number, unit)
        case ScalaMember(_, ScalaName(_, "Int"), "MaxValue"):
            return SpecialValue.LARGEST_INT
        case ScalaMember(_, ScalaMember(_, ScalaName(_, "Int"), "MaxValue"), unit):
            return _with_unit(_LARGEST_INT, unit)
        case ScalaMember(_, ScalaMember(_, ScalaName(_, "Long"), "MaxValue"), unit) if (
            unit in _DURATIONS_MS or _SIZES.get(unit) == 1
        ):
            return SpecialValue.NOTHING  # with kilobytes, Scala overflows to -1024 bytes
        case ScalaMember(_, ScalaName(_, "Long"), "MaxValue"):
            return SpecialValue.NOTHING
        case ScalaMember(_, ScalaName(_, "Duration"), word) if word in _ENDLESS:
            return SpecialValue.NOTHING
        case ScalaName(_, "Never"):
            return SpecialValue.NOTHING
        case ScalaCall() | ScalaConsList() as listed:
            return _texts(listed)
        case ScalaName(_, "Nil"):
            return []
        case ScalaMember() | ScalaName() | ScalaNew() | ScalaTuple():
            return SpecialValue.NO_VALUE


def _with_unit(number: int, unit: str) -> Value | SpecialValue:
    if unit in _SIZES:
        size = number * _SIZES[unit]
        return format_size(size) if size <= MAX_AMOUNT else SpecialValue.NO_VALUE
    duration_ms = number * _DURATIONS_MS.get(unit, Fraction(-1))
    if not 0 <= duration_ms <= MAX_AMOUNT or duration_ms.denominator != 1:
        return SpecialValue.NO_VALUE
    return format_duration_ms(duration_ms.numerator)


def _texts(listed: Expression) -> Value | SpecialValue:
    """Return the value of a list of strings, or `SpecialValue.NO_VALUE` if a member is not a string."""
    texts: list[str] = []
    for each in parts(listed):
        if not isinstance(each, ScalaLiteral) or not isinstance(each.value, str):
            return SpecialValue.NO_VALUE
        texts.append(each.value)
    return texts
