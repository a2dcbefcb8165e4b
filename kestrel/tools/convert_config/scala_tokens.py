"""Tokenizer for Scala source text."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from kestrel.errors import KestrelError
from kestrel.tools.convert_config.scala_tree import Statement


class ScalaError(KestrelError):
    """A text cannot be parsed. `line` is where, counted from 1, and the message contains it."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(f"line {line}: {sentence}")
        self.line = line


class TokenKind(Enum):
    """Kind of a token."""

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
        """Return whether this is one of these signs."""
        return self.kind is TokenKind.SIGN and self.text in signs


_RESERVED: Final = ("new", "with", "import", "package")


_LONGEST_NUMBER: Final = 20
"""Maximum number of digits, which is more than any setting has."""

_TOKEN: Final = re.compile(
    r"""
      (?P<space>[ \t\f\r]+)
    | (?P<line_end>\n)
    | (?P<remark>//[^\n]*)
    | (?P<remarks>/\*)
    | (?P<raw>\"\"\".*?\"\"\"+)
    | (?P<text>"(?:[^"\\\n]|\\[^\n])*")
    | (?P<open_text>")
    | (?P<character>'(?:[^'\\\n]|\\[^\n]+?)')
    | (?P<fraction>[0-9][0-9_]*\.[0-9][\w]*)
    | (?P<number>(?:0|[1-9][0-9_]*)[lL]?(?!\w))
    | (?P<no_number>[0-9]\w*)
    | (?P<name>[^\W\d]\w*)
    | (?P<quoted_name>`[^`\n]+`)
    | (?P<bracket>[(){}\[\],;])
    | (?P<sign>[!#%&*+\-/:<=>?@\\^|~]+?(?=/[/*])|[!#%&*+\-/:<=>?@\\^|~]+|\.)
    | (?P<other>.)
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
        assert piece is not None and piece.lastgroup is not None  # `other` matches any character
        end = piece.end()
        group = piece.lastgroup
        if group == "remarks":
            end = _end_of_remarks(text, end, line)
        elif group == "open_text":
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
        case "space" | "remark" | "remarks":
            return None, ""
        case "line_end":
            return TokenKind.LINE_END, ""
        case "raw":
            # A Unicode escape is one character in some Scala versions, six in others.
            return TokenKind.OTHER if "\\u" in written else TokenKind.TEXT, written[3:-3]
        case "text":
            value = _unescaped(written[1:-1])
            return (TokenKind.OTHER, written) if value is None else (TokenKind.TEXT, value)
        case "number":
            digits = written.rstrip("lL").replace("_", "")
            return TokenKind.NUMBER if len(digits) <= _LONGEST_NUMBER else TokenKind.OTHER, digits
        case "name":
            return TokenKind.SIGN if written in _RESERVED else TokenKind.NAME, written
        case "quoted_name":
            return TokenKind.NAME, written.strip("`")
        case "bracket" | "sign":
            return TokenKind.SIGN, written
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
