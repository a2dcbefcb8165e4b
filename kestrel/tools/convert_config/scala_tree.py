"""Syntax tree of a configuration in Scala."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class ScalaNumber(NamedTuple):
    """A whole number."""

    line: int
    value: int


class ScalaText(NamedTuple):
    """A string, without its quotes."""

    line: int
    value: str


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


Expression: TypeAlias = (
    ScalaNumber | ScalaText | ScalaName | ScalaMember | ScalaCall | ScalaTuple | ScalaConsList | ScalaNew
)


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


class ScalaProgram(NamedTuple):
    """A parsed configuration, and the statements outside it."""

    root: ScalaNew
    unread_statements: tuple[UnreadStatement, ...]
