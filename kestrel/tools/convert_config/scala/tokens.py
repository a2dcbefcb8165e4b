"""The words of a program in Scala, with their lines. Nothing of it is carried out."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from kestrel.tools.convert_config.scala.errors import ScalaError


class TokenKind(Enum):
    """What a token is."""

    NAME = auto()
    NUMBER = auto()
    """A whole number. Others are no number of a configuration, and are OTHER; so is ``010``, which was octal once."""
    TEXT = auto()
    SIGN = auto()
    """A bracket, comma, semicolon or dot, or an operator as a whole: ``::``, ``=``, ``=>``."""
    OTHER = auto()
    """What no configuration needs: a character, a fraction, what is not of the language."""
    LINE_END = auto()
    END = auto()


class Token(NamedTuple):
    """One of them. `text` is what it says: a text without its quotes. `start` and `end` are where it stands."""

    kind: TokenKind
    text: str
    line: int
    start: int
    end: int


_LONGEST_NUMBER: Final = 20
"""Digits: more than any setting has."""

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
    """All of them, the last one the END. Raises `ScalaError` where a text or a remark has no end."""
    found = []
    position, line = 0, 1
    while position < len(text):
        piece = _TOKEN.match(text, position)
        assert piece is not None and piece.lastgroup is not None  # whatever it is, it is `other` at least
        end = piece.end()
        match piece.lastgroup:
            case "space" | "remark":
                pass
            case "remarks":
                end = _end_of_remarks(text, end, line)
            case "open_text":
                raise ScalaError(line, "a text has no end: a quotation mark is missing")
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
        kind = (
            TokenKind.OTHER if "\\u" in written else TokenKind.TEXT
        )  # a character to one Scala, and six of them to the next
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
    """What a text in quotes says; None where it has an escape that Scala has not, or half a character."""
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
    """Where a remark ends that began before `position`. Remarks may be within remarks."""
    depth = 1
    while depth:
        edge = _EDGE_OF_REMARK.search(text, position)
        if edge is None:
            raise ScalaError(line, "a remark has no end: */ is missing")
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position
