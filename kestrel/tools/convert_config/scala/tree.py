"""What a configuration in Scala is made of, as far as configurations need it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class ScalaNumber(NamedTuple):
    """A whole number."""

    line: int
    value: int


class ScalaText(NamedTuple):
    """A text, without its quotes."""

    line: int
    value: str


class ScalaName(NamedTuple):
    """A name that stands by itself: ``true``, ``None``, ``Up``."""

    line: int
    word: str


class ScalaMember(NamedTuple):
    """What stands behind a dot: ``16.megabytes``, ``Duration.MaxValue``."""

    line: int
    of: Expression
    word: str


class ScalaCall(NamedTuple):
    """A call: ``Some(1)``, ``List("a", "b")``."""

    line: int
    of: Expression
    arguments: tuple[Expression, ...]


class ScalaTuple(NamedTuple):
    """Some in brackets, with commas between: ``("user", "password")``."""

    line: int
    parts: tuple[Expression, ...]


class ScalaConsList(NamedTuple):
    """Some that ``::`` and its kin join to a list."""

    line: int
    parts: tuple[Expression, ...]


class ScalaNew(NamedTuple):
    """``new Type(arguments) with Others { body }``."""

    line: int
    type: str
    arguments: tuple[Expression, ...]
    others: tuple[str, ...]
    body: tuple[Statement, ...]


Expression: TypeAlias = (
    ScalaNumber | ScalaText | ScalaName | ScalaMember | ScalaCall | ScalaTuple | ScalaConsList | ScalaNew
)


class ScalaAssignment(NamedTuple):
    """``admin.httpPort = 2223``. `path` are the words before the ``=``; `last_line` is where the value ends."""

    line: int
    last_line: int
    path: tuple[str, ...]
    value: Expression
    source: str
    """As it is written."""


class UnreadStatement(NamedTuple):
    """A statement that is none of a configuration, or is written in a way that is not known."""

    line: int
    last_line: int
    source: str


Statement: TypeAlias = ScalaAssignment | UnreadStatement


class ScalaProgram(NamedTuple):
    """The configuration, and what stands beside it."""

    root: ScalaNew
    unread_statements: tuple[UnreadStatement, ...]
