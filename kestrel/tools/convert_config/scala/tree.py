"""What a configuration in Scala is made of, as far as configurations need it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Number(NamedTuple):
    """A whole number."""

    line: int
    value: int


class Text(NamedTuple):
    """A text, without its quotes."""

    line: int
    value: str


class Name(NamedTuple):
    """A name that stands by itself: ``true``, ``None``, ``Up``."""

    line: int
    word: str


class Member(NamedTuple):
    """What stands behind a dot: ``16.megabytes``, ``Duration.MaxValue``."""

    line: int
    of: Expression
    word: str


class Call(NamedTuple):
    """A call: ``Some(1)``, ``List("a", "b")``."""

    line: int
    of: Expression
    arguments: tuple[Expression, ...]


class Several(NamedTuple):
    """Some in brackets, with commas between: ``("user", "password")``."""

    line: int
    parts: tuple[Expression, ...]


class Chain(NamedTuple):
    """Some that ``::`` and its kin join to a list."""

    line: int
    parts: tuple[Expression, ...]


class New(NamedTuple):
    """``new Type(arguments) with Others { body }``."""

    line: int
    type: str
    arguments: tuple[Expression, ...]
    others: tuple[str, ...]
    body: tuple[Statement, ...]


Expression: TypeAlias = Number | Text | Name | Member | Call | Several | Chain | New


class Assignment(NamedTuple):
    """``admin.httpPort = 2223``. `path` are the words before the ``=``; `last_line` is where the value ends."""

    line: int
    last_line: int
    path: tuple[str, ...]
    value: Expression
    source: str
    """As it is written."""


class Unread(NamedTuple):
    """A statement that is none of a configuration, or is written in a way that is not known."""

    line: int
    last_line: int
    source: str


Statement: TypeAlias = Assignment | Unread


class Program(NamedTuple):
    """The configuration, and what stands beside it."""

    root: New
    beside: tuple[Unread, ...]
