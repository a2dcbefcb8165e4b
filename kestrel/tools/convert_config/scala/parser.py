"""Parser of a configuration in Scala. Statements outside the grammar are kept as `UnreadStatement`.

    program    := { import | package } new KestrelConfig block
    block      := "{" { statement } "}"
    statement  := path "=" expression
    expression := simple { ("::" | ":::" | "++") simple }
    simple     := first { "." name | "(" expressions ")" | "[" types "]" } [ unit ]
    first      := number | text | name | "(" expressions ")" | new Type [ arguments ] { with Type } [ block ]

A statement ends at the end of its line, unless its last token or the next line shows that it continues.
"""

from __future__ import annotations

from typing import Final, NoReturn

from kestrel.tools.convert_config.scala.errors import ScalaError
from kestrel.tools.convert_config.scala.tokens import Token, TokenKind, tokens
from kestrel.tools.convert_config.scala.tree import (
    Expression,
    ScalaAssignment,
    ScalaCall,
    ScalaConsList,
    ScalaMember,
    ScalaName,
    ScalaNew,
    ScalaNumber,
    ScalaProgram,
    ScalaText,
    ScalaTuple,
    Statement,
    UnreadStatement,
)

ROOT: Final = "KestrelConfig"

DEEPEST: Final = 40
"""Maximum nesting depth of brackets."""

_JOINING: Final = ("::", ":::", "++")
_GOES_ON: Final = (*_JOINING, ".", "{")
"""Tokens that continue the statement of the line before."""
_PAIRS: Final = {"(": ")", "[": "]", "{": "}"}
_WITHOUT_EFFECT: Final = ("import", "package")


class _UnknownStatement(Exception):
    """The current statement is outside the grammar."""


def parse(text: str) -> ScalaProgram:
    """Parse a configuration. Raise `ScalaError` if it is not one of Kestrel, or ends too early."""
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._position = 0
        self._depth = 0

    def program(self) -> ScalaProgram:
        root: ScalaNew | None = None
        unread_statements: list[UnreadStatement] = []
        while (token := self._skip_line_ends()).kind is not TokenKind.END:
            if token.kind is TokenKind.NAME and token.text in _WITHOUT_EFFECT:
                self._skip_statement()
            elif root is None and token.kind is TokenKind.NAME and token.text == "new":
                root = self._root()
                if not self._is_at_end_of_statement():
                    unread_statements.append(self._unread(self._position))
            else:
                unread_statements.append(self._unread(self._position))
        if root is None:
            raise ScalaError(1, f"there is no new {ROOT} {{ ... }}: is this a configuration of Kestrel 2.0 or later?")
        return ScalaProgram(root, tuple(unread_statements))

    def _root(self) -> ScalaNew:
        line = self._here.line
        try:
            made = self._new()
        except _UnknownStatement:
            raise ScalaError(line, f"the new {ROOT} {{ ... }} cannot be parsed") from None
        if made.type != ROOT:
            raise ScalaError(line, f"this does not create a {ROOT}, as a configuration of Kestrel does")
        return made

    # Statements.

    def _block(self) -> tuple[Statement, ...]:
        """Parse a block in braces, and return its statements."""
        opening = self._take("{")
        self._deeper(opening)
        statements: list[Statement] = []
        while not self._is_sign(self._skip_line_ends(), "}"):
            if self._here.kind is TokenKind.END:
                raise ScalaError(opening.line, "this { is never closed")
            statements.append(self._statement())
        self._take("}")
        self._depth -= 1
        return tuple(statements)

    def _statement(self) -> Statement:
        start, depth = self._position, self._depth
        try:
            path = [self._name()]
            while self._is_sign(self._here, "."):
                self._next()
                path.append(self._name())
            self._take("=")
            self._skip_line_ends()
            value = self._expression()
            if not self._is_at_end_of_statement():
                self._not_known()
        except _UnknownStatement:
            self._position, self._depth = start, depth
            return self._unread(start)
        first, last = self._tokens[start], self._tokens[self._position - 1]
        return ScalaAssignment(first.line, last.line, tuple(path), value, self._text[first.start : last.end])

    def _is_at_end_of_statement(self) -> bool:
        here = self._here
        return here.kind in (TokenKind.LINE_END, TokenKind.END) or (
            here.kind is TokenKind.SIGN and here.text in (";", "}")
        )

    def _unread(self, start: int) -> UnreadStatement:
        """Return the statement that begins at token `start` as unread, and skip it."""
        self._position = start
        self._skip_statement()
        first, last = self._tokens[start], self._tokens[max(start, self._position - 1)]
        return UnreadStatement(first.line, last.line + last.text.count("\n"), self._text[first.start : last.end])

    def _skip_statement(self) -> None:
        """Advance to the end of the current statement."""
        depth = 0
        while (token := self._here).kind is not TokenKind.END:
            if depth == 0 and token.kind is TokenKind.LINE_END and not self._goes_on():
                return
            if token.kind is TokenKind.SIGN:
                if depth == 0 and token.text == ";":
                    return
                if token.text in _PAIRS:
                    depth += 1
                elif token.text in _PAIRS.values():
                    if depth == 0 and token.text == "}" and self._depth:
                        return
                    depth = max(0, depth - 1)
            self._next()

    def _goes_on(self) -> bool:
        """Return whether the statement continues after the line end at the current position."""
        before = self._tokens[self._position - 1]
        if before.kind is TokenKind.SIGN and before.text not in (")", "]", "}", ";"):
            return True
        after = self._after_line_ends()
        return after.kind is TokenKind.SIGN and after.text in _GOES_ON

    # Expressions.

    def _expression(self) -> Expression:
        first = self._here
        self._deeper(first)
        parts = [self._simple()]
        while self._is_sign(self._after_line_ends(), *_JOINING):
            self._skip_line_ends()
            self._next()
            self._skip_line_ends()
            parts.append(self._simple())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else ScalaConsList(first.line, tuple(parts))

    def _simple(self) -> Expression:
        value = self._first()
        while True:
            here = self._here
            if self._is_sign(self._after_line_ends(), "."):
                self._skip_line_ends()
                self._next()
                value = ScalaMember(here.line, value, self._name())
            elif self._is_sign(here, "("):
                value = ScalaCall(here.line, value, self._arguments())
            elif self._is_sign(here, "["):
                self._types()
            elif here.kind is TokenKind.NAME and isinstance(value, ScalaNumber):
                value = ScalaMember(here.line, value, self._name())  # 30 seconds
            else:
                return value

    def _first(self) -> Expression:
        token = self._here
        if token.kind is TokenKind.NAME and token.text == "new":
            return self._new()
        if self._is_sign(token, "("):
            parts = self._arguments()
            return parts[0] if len(parts) == 1 else ScalaTuple(token.line, parts)
        match token.kind:
            case TokenKind.NUMBER:
                self._next()
                return ScalaNumber(token.line, int(token.text))
            case TokenKind.TEXT:
                self._next()
                return ScalaText(token.line, token.text)
            case TokenKind.NAME:
                self._next()
                return ScalaName(token.line, token.text)
            case _:
                self._not_known()

    def _arguments(self) -> tuple[Expression, ...]:
        """Parse expressions in parentheses, separated by commas."""
        self._deeper(self._take("("))
        parts: list[Expression] = []
        while not self._is_sign(self._skip_line_ends(), ")"):
            if parts:
                self._take(",")
                self._skip_line_ends()
            parts.append(self._expression())
        self._next()
        self._depth -= 1
        return tuple(parts)

    def _types(self) -> None:
        """Skip type arguments such as ``[String]``, which do not change a value."""
        depth = 0
        while True:
            token = self._here
            if token.kind is TokenKind.NAME or self._is_sign(token, ",", "."):
                self._next()
            elif self._is_sign(token, "["):
                depth += 1
                self._next()
            elif self._is_sign(token, "]"):
                depth -= 1
                self._next()
                if depth == 0:
                    return
            else:
                self._not_known()

    def _new(self) -> ScalaNew:
        line = self._next().line
        type_ = self._type()
        arguments: tuple[Expression, ...] = ()
        others: list[str] = []
        if self._is_sign(self._here, "("):
            arguments = self._arguments()
        while (token := self._after_line_ends()).kind is TokenKind.NAME and token.text == "with":
            self._skip_line_ends()
            self._next()
            others.append(self._type())
        body: tuple[Statement, ...] = ()
        if self._is_sign(self._after_line_ends(), "{"):
            self._skip_line_ends()
            body = self._block()
        return ScalaNew(line, type_, arguments, tuple(others), body)

    def _type(self) -> str:
        """Parse a type, and return the last part of its name."""
        word = self._name()
        while self._is_sign(self._here, "."):
            self._next()
            word = self._name()
        if self._is_sign(self._here, "["):
            self._types()
        return word

    # Tokens.

    @property
    def _here(self) -> Token:
        return self._tokens[self._position]

    def _next(self) -> Token:
        """Return the current token and advance."""
        token = self._tokens[self._position]
        if token.kind is not TokenKind.END:
            self._position += 1
        return token

    def _after_line_ends(self) -> Token:
        """Return the next token that is not a line end, without advancing."""
        position = self._position
        while self._tokens[position].kind is TokenKind.LINE_END:
            position += 1
        return self._tokens[position]

    def _skip_line_ends(self) -> Token:
        """Skip line ends and semicolons, and return the token after them."""
        while self._here.kind is TokenKind.LINE_END or self._is_sign(self._here, ";"):
            self._position += 1
        return self._here

    @staticmethod
    def _is_sign(token: Token, *signs: str) -> bool:
        return token.kind is TokenKind.SIGN and token.text in signs

    def _take(self, sign: str) -> Token:
        if not self._is_sign(self._here, sign):
            self._not_known()
        return self._next()

    def _name(self) -> str:
        if self._here.kind is not TokenKind.NAME:
            self._not_known()
        return self._next().text

    def _deeper(self, token: Token) -> None:
        self._depth += 1
        if self._depth > 2 * DEEPEST:  # an expression and its brackets count both
            raise ScalaError(token.line, f"brackets are nested more than {DEEPEST} deep")

    @staticmethod
    def _not_known() -> NoReturn:
        raise _UnknownStatement
