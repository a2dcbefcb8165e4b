"""Tokenizer for Scala source text."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from kestrel.errors import KestrelError
from kestrel.tools.convert_config.scala_tree import (
    Expression,
    ScalaAssignment,
    ScalaCall,
    ScalaConsList,
    ScalaLiteral,
    ScalaMember,
    ScalaName,
    ScalaNew,
    ScalaTuple,
    Statement,
    UnreadStatement,
)


class ScalaError(KestrelError):
    """A text cannot be parsed. `line` is where, counted from 1, and the message contains it."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(f"line {line}: {sentence}")
        self.line = line


class TokenKind(Enum):
    """Kind of a token. Most groups of the tokenizer's pattern are called like the kind of what they match."""

    NAME = auto()
    NUMBER = auto()
    """A whole number. All others are OTHER, and so is ``010``, which used to be octal."""
    TEXT = auto()
    SIGN = auto()
    """A bracket, comma, semicolon or dot, a reserved word, or a whole operator: ``::``, ``=``, ``=>``."""
    BLOCK = auto()
    """A block in braces, made by the parser."""
    OTHER = auto()
    """Anything that configurations do not use: a character, a fraction, invalid text."""
    LINE_END = auto()
    """The end of a line, or of several."""
    END = auto()


class Token(NamedTuple):
    """A token. `text` is its value, without quotes. `start` and `end` are its offsets in the source."""

    kind: TokenKind
    text: str
    line: int
    start: int
    end: int
    last_line: int
    block: tuple[Statement, ...] = ()
    """Statements of a BLOCK."""

    def is_sign(self, *signs: str) -> bool:
        return self.kind is TokenKind.SIGN and self.text in signs


_RESERVED: Final = ("new", "with", "import", "package")


_LONGEST_NUMBER: Final = 20
"""Maximum number of digits, which is more than any setting has."""

_TOKEN: Final = re.compile(
    r"""
      (?P<SPACE>[ \t\f\r]+ | //[^\n]*)
    | (?P<LINE_END>\n)
    | (?P<REMARKS>/\*)
    | (?P<RAW>\"\"\".*?\"\"\"+)
    | (?P<TEXT>"(?:[^"\\\n]|\\[^\n])*")
    | (?P<OPEN_TEXT>")
    | (?P<CHARACTER_OR_FRACTION>'(?:[^'\\\n]|\\[^\n]+?)' | [0-9][0-9_]*\.[0-9][\w]*)
    | (?P<NUMBER>(?:0|[1-9][0-9_]*)[lL]?(?!\w))
    | (?P<NAME>[^\W\d]\w* | `[^`\n]+`)
    | (?P<SIGN>[(){}\[\],;] | [!#%&*+\-/:<=>?@\\^|~]+?(?=/[/*]) | [!#%&*+\-/:<=>?@\\^|~]+ | \.)
    | (?P<OTHER>[0-9]\w* | .)
    """,
    re.VERBOSE | re.DOTALL,
)

_ESCAPE: Final = re.compile(r"\\(u+[0-9A-Fa-f]{4}|.)")
_ESCAPES: Final = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "'": "'", "\\": "\\"}
_EDGE_OF_REMARK: Final = re.compile(r"/\*|\*/")


def tokens(text: str) -> list[Token]:
    """Split a text into tokens, the last of them END. Raise `ScalaError` for an unterminated string or comment."""
    found: list[Token] = []
    position, line = 0, 1
    while position < len(text):
        piece = _TOKEN.match(text, position)
        assert piece is not None and piece.lastgroup is not None  # OTHER matches any character
        end = piece.end()
        group = piece.lastgroup
        if group == "REMARKS":
            end = _end_of_remarks(text, end, line)
        elif group == "OPEN_TEXT":
            raise ScalaError(line, "a string is not terminated: a quotation mark is missing")
        last_line = line + text.count("\n", position, end)
        kind, value = _valued(group, piece[0])
        if kind is not None and not (kind is TokenKind.LINE_END and found and found[-1].kind is kind):
            found.append(Token(kind, value, line, position, end, last_line))
        position, line = end, last_line
    found.append(Token(TokenKind.END, "", line, position, position, line))
    return found


def _valued(group: str, written: str) -> tuple[TokenKind | None, str]:
    """Return the kind and the value of a token, or no kind for white space and comments."""
    match group:
        case "SPACE" | "REMARKS":
            return None, ""
        case "RAW":
            # A Unicode escape is one character in some Scala versions, six in others.
            return TokenKind.OTHER if "\\u" in written else TokenKind.TEXT, written[3:-3]
        case "TEXT":
            value = _unescaped(written[1:-1])
            return (TokenKind.OTHER, written) if value is None else (TokenKind.TEXT, value)
        case "NUMBER":
            digits = written.rstrip("lL").replace("_", "")
            return TokenKind.NUMBER if len(digits) <= _LONGEST_NUMBER else TokenKind.OTHER, digits
        case "NAME":
            return TokenKind.SIGN if written in _RESERVED else TokenKind.NAME, written.strip("`")
        case "LINE_END" | "SIGN":
            return TokenKind[group], written
        case _:
            return TokenKind.OTHER, written


def _unescaped(written: str) -> str | None:
    """Return the value of a quoted string, or None for an invalid escape or a lone surrogate."""
    is_good = True

    def said(match: re.Match[str]) -> str:
        nonlocal is_good
        code = match[1]
        if code[0] == "u" and len(code) > 1:
            return chr(int(code[-4:], 16))
        is_good = is_good and code in _ESCAPES
        return _ESCAPES.get(code, "")

    text = _ESCAPE.sub(said, written)
    return text if is_good and not any("\ud800" <= character <= "\udfff" for character in text) else None


def _end_of_remarks(text: str, position: int, line: int) -> int:
    """Return the end of a block comment that began before `position`. Block comments can be nested."""
    depth = 1
    while depth:
        edge = _EDGE_OF_REMARK.search(text, position)
        if edge is None:
            raise ScalaError(line, "a comment is not terminated: */ is missing")
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position


ROOT: Final = "KestrelConfig"

DEEPEST: Final = 40
"""Maximum nesting depth of brackets."""

_JOINING: Final = ("::", ":::", "++")
_GOES_ON: Final = (*_JOINING, ".", "{", "with")
"""Tokens that continue the statement of the line before."""
_CLOSING: Final = (")", "]", "}")


class _UnknownStatement(Exception):
    """The current statement is outside the grammar."""


def parse(text: str) -> ScalaNew:
    """Parse a configuration. Statements outside it are added to its body, unread.

    Raise `ScalaError` if it is not one of Kestrel, or ends too early.
    """
    root: ScalaNew | None = None
    unread: list[UnreadStatement] = []
    for statement in _Statements(text).top():
        first = statement[0]
        if first.is_sign("import", "package"):
            continue
        if root is None and first.is_sign("new"):
            root, rest = _root(statement)
            statement = statement[rest:]
        if statement:
            unread.append(_unread(text, statement))
    if root is None:
        raise ScalaError(1, f"there is no new {ROOT} {{ ... }}: is this a configuration of Kestrel 2.0 or later?")
    return root._replace(body=(*root.body, *unread))


def _root(statement: list[Token]) -> tuple[ScalaNew, int]:
    """Return the configuration at the beginning of a statement, and the number of its tokens."""
    line = statement[0].line
    expression = _ExpressionParser(statement)
    try:
        made = expression.new()
    except _UnknownStatement:
        raise ScalaError(line, f"the new {ROOT} {{ ... }} cannot be parsed") from None
    if made.type != ROOT:
        raise ScalaError(line, f"this does not create a {ROOT}, as a configuration of Kestrel does")
    return made, expression.position


def _statement(text: str, statement: list[Token]) -> Statement:
    first, last = statement[0], statement[-1]
    try:
        path, value = _ExpressionParser(statement).assignment()
    except _UnknownStatement:
        return _unread(text, statement)
    return ScalaAssignment(first.line, last.last_line, path, value, text[first.start : last.end])


def _unread(text: str, statement: list[Token]) -> UnreadStatement:
    first, last = statement[0], statement[-1]
    return UnreadStatement(first.line, last.last_line, text[first.start : last.end])


class _Statements:
    """A splitter of a text into statements, each a list of tokens without line ends."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._position = 0
        self._depth = 0

    def top(self) -> list[list[Token]]:
        statements = []
        while (token := self._tokens[self._position]).kind is not TokenKind.END:
            if statement := self._next():
                statements.append(statement)
            elif token.is_sign("}"):
                self._position += 1  # without an opening brace
                statements.append([token])
        return statements

    def _next(self) -> list[Token]:
        """Advance to the end of a statement and return its tokens: none before a brace or the end of the text."""
        statement: list[Token] = []
        before = self._depth
        while (token := self._tokens[self._position]).kind is not TokenKind.END:
            is_open = self._depth > before
            if token.is_sign("}") and not is_open:
                break
            self._position += 1
            if token.kind is TokenKind.LINE_END or token.is_sign(";"):
                if statement and not is_open and (token.is_sign(";") or not self._goes_on(statement[-1])):
                    break
                continue
            if token.is_sign("(", "[", "{"):
                self._open(token)
            if token.is_sign("{"):
                token = self._block(token)
            elif is_open and token.is_sign(*_CLOSING):
                self._depth -= 1
            statement.append(token)
        self._depth = before
        return statement

    def _goes_on(self, last: Token) -> bool:
        """Return whether a statement whose last token is `last` continues after the line end before this position."""
        if last.kind is TokenKind.SIGN and not last.is_sign(*_CLOSING):
            return True
        after = next(token for token in self._tokens[self._position :] if token.kind is not TokenKind.LINE_END)
        return after.is_sign(*_GOES_ON)

    def _open(self, token: Token) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ScalaError(token.line, f"brackets are nested more than {DEEPEST} deep")

    def _block(self, opening: Token) -> Token:
        """Return the block that begins with `opening` as one token."""
        statements: list[Statement] = []
        while not (token := self._tokens[self._position]).is_sign("}"):
            if token.kind is TokenKind.END:
                raise ScalaError(opening.line, "this { is never closed")
            if statement := self._next():
                statements.append(_statement(self._text, statement))
        self._position += 1
        self._depth -= 1
        return Token(TokenKind.BLOCK, "", opening.line, opening.start, token.end, token.line, tuple(statements))


class _ExpressionParser:
    """A parser of the tokens of one statement."""

    def __init__(self, statement: list[Token]) -> None:
        last = statement[-1]
        self._tokens = [*statement, Token(TokenKind.END, "", last.line, last.end, last.end, last.last_line)]
        self.position = 0
        """Number of tokens that have been read."""

    def assignment(self) -> tuple[tuple[str, ...], Expression]:
        path = [self._name()]
        while self._skip("."):
            path.append(self._name())
        self._take("=")
        value = self._expression()
        if self._here.kind is not TokenKind.END:
            raise _UnknownStatement
        return tuple(path), value

    def new(self) -> ScalaNew:
        """Return an object creation, which begins here."""
        line = self._take("new").line
        type_ = self._type()
        arguments = self._arguments() if self._here.is_sign("(") else ()
        others = []
        while self._skip("with"):
            others.append(self._type())
        body = self._next().block if self._here.kind is TokenKind.BLOCK else ()
        return ScalaNew(line, type_, arguments, tuple(others), body)

    def _expression(self) -> Expression:
        line = self._here.line
        parts = [self._simple()]
        while self._skip(*_JOINING):
            parts.append(self._simple())
        return parts[0] if len(parts) == 1 else ScalaConsList(line, tuple(parts))

    def _simple(self) -> Expression:
        value = self._first()
        while True:
            here = self._here
            is_number = isinstance(value, ScalaLiteral) and isinstance(value.value, int)
            if self._skip(".") or (here.kind is TokenKind.NAME and is_number):  # 30 seconds
                value = ScalaMember(here.line, value, self._name())
            elif here.is_sign("("):
                value = ScalaCall(here.line, value, self._arguments())
            elif here.is_sign("["):
                self._types()
            else:
                return value

    def _first(self) -> Expression:
        token = self._here
        if token.is_sign("new"):
            return self.new()
        if token.is_sign("("):
            parts = self._arguments()
            return parts[0] if len(parts) == 1 else ScalaTuple(token.line, parts)
        self.position += 1
        match token.kind:
            case TokenKind.NUMBER:
                return ScalaLiteral(token.line, int(token.text))
            case TokenKind.TEXT:
                return ScalaLiteral(token.line, token.text)
            case TokenKind.NAME:
                return ScalaName(token.line, token.text)
            case _:
                raise _UnknownStatement

    def _arguments(self) -> tuple[Expression, ...]:
        """Return expressions in parentheses, separated by commas."""
        self._take("(")
        parts: list[Expression] = []
        while not self._skip(")"):
            if parts:
                self._take(",")
            parts.append(self._expression())
        return tuple(parts)

    def _types(self) -> None:
        """Skip type arguments such as ``[String]``, which do not change a value."""
        self._take("[")
        while not self._skip("]"):
            if self._here.is_sign("["):
                self._types()
            elif not self._skip(",", "."):
                self._name()

    def _type(self) -> str:
        word = self._name()
        while self._skip("."):
            word = self._name()
        if self._here.is_sign("["):
            self._types()
        return word

    @property
    def _here(self) -> Token:
        return self._tokens[self.position]

    def _next(self) -> Token:
        self.position += 1
        return self._tokens[self.position - 1]

    def _skip(self, *signs: str) -> bool:
        """Advance if the current token is one of these signs. Return whether it is."""
        is_one = self._here.is_sign(*signs)
        self.position += is_one
        return is_one

    def _take(self, sign: str) -> Token:
        if not self._here.is_sign(sign):
            raise _UnknownStatement
        return self._next()

    def _name(self) -> str:
        if self._here.kind is not TokenKind.NAME:
            raise _UnknownStatement
        return self._next().text
