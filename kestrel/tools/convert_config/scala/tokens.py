"""Tokenizer for Scala source text."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from kestrel.tools.convert_config.scala.errors import ScalaError


class TokenKind(Enum):
    """Kind of a token."""

    NAME = auto()
    NUMBER = auto()
    """A whole number. All others are OTHER, and so is ``010``, which used to be octal."""
    TEXT = auto()
    SIGN = auto()
    """A bracket, comma, semicolon or dot, or a whole operator: ``::``, ``=``, ``=>``."""
    OTHER = auto()
    """Anything that configurations do not use: a character, a fraction, invalid text."""
    LINE_END = auto()
    END = auto()


class Token(NamedTuple):
    """A token. `text` is its value, without quotes. `start` and `end` are its offsets in the source."""

    kind: TokenKind
    text: str
    line: int
    start: int
    end: int


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

_KINDS: Final = {
    "name": TokenKind.NAME,
    "quoted_name": TokenKind.NAME,
    "bracket": TokenKind.SIGN,
    "sign": TokenKind.SIGN,
}
_ESCAPE: Final = re.compile(r"\\(u+[0-9A-Fa-f]{4}|.)")
_ESCAPES: Final = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "'": "'", "\\": "\\"}
_EDGE_OF_REMARK: Final = re.compile(r"/\*|\*/")


def tokens(text: str) -> list[Token]:
    """Split a text into tokens, the last of them END. Raise `ScalaError` for an unterminated string or comment."""
    found = []
    position, line = 0, 1
    while position < len(text):
        piece = _TOKEN.match(text, position)
        assert piece is not None and piece.lastgroup is not None  # `other` matches any character
        end = piece.end()
        match piece.lastgroup:
            case "space" | "remark":
                pass
            case "remarks":
                end = _end_of_remarks(text, end, line)
            case "open_text":
                raise ScalaError(line, "a string is not terminated: a quotation mark is missing")
            case group:
                found.append(_token(group, piece[0], line, position, end))
        line += text.count("\n", position, end)
        position = end
    found.append(Token(TokenKind.END, "", line, position, position))
    return found


def _token(group: str, written: str, line: int, start: int, end: int) -> Token:
    if group == "line_end":
        return Token(TokenKind.LINE_END, "", line, start, end)
    if group == "raw":
        # A Unicode escape is one character in some Scala versions, six in others.
        kind = TokenKind.OTHER if "\\u" in written else TokenKind.TEXT
        return Token(kind, written[3:-3], line, start, end)
    if group == "text":
        said = _unescaped(written[1:-1])
        return Token(
            TokenKind.OTHER if said is None else TokenKind.TEXT, written if said is None else said, line, start, end
        )
    if group == "number":
        digits = written.rstrip("lL").replace("_", "")
        return Token(TokenKind.NUMBER if len(digits) <= _LONGEST_NUMBER else TokenKind.OTHER, digits, line, start, end)
    return Token(_KINDS.get(group, TokenKind.OTHER), written.strip("`"), line, start, end)


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
