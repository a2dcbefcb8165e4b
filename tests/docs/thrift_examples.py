"""The notation of thrift calls in the documents: in words, and below in bytes with an explanation of each line.

thriftpy2 and the IDL, which are independent of the server, encode the words and decode the replies.
"""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple

from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TMemoryBuffer

from kestrel.config.model import Config
from kestrel.protocols import thrift_binary as binary
from tests.docs.test_protocols import Playing, examples_in
from tests.protocols.finagle_headers import IDL as TRACING
from tests.protocols.finagle_headers import without_header, written
from tests.session.thrift_libraries import loaded

IDL: Final = loaded()

NOT_STRICT: Final = ", not strict"
"""The words after a call in the older form."""

UPGRADE: Final = "__can__finagle__trace__v3__"

_AS: Final = re.compile(r', as "(.*)"$')
"""The name of the client after a call on an upgraded connection."""

_SAID: Final = re.compile(r"(2?)(--|[<>]) (.*)")
_BYTES: Final = re.compile(r"    ((?:  )*)((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  +\S.*)?")
_NUMBER: Final = re.compile(r"(?:.*: |call number )?(-?\d+)(?: bytes follow)?")
"""An explanation that ends in the number that the bytes end in."""


class Said(NamedTuple):
    """A call (`direction` >), a reply (<) or an event (--), in words and perhaps lines of bytes."""

    client: int
    direction: str
    words: str
    lines: list[str]


class ThriftBlock(NamedTuple):
    """An example: its line number, configuration and lines. With `keeps_scrolls` the server uses scrolls."""

    number: int
    config: Config
    said: list[Said]
    keeps_scrolls: bool


def thrift_blocks_in(page: str) -> Iterator[ThriftBlock]:
    """Yield the thrift examples of a page."""
    for example in examples_in(page):
        if example.kind == "thrift":
            assert example.words in ([], ["scroll"]), f"line {example.number}: {example.words}"
            yield ThriftBlock(example.number, example.config, list(_said_in(example.lines)), bool(example.words))


def _said_in(lines: list[str]) -> Iterator[Said]:
    said: Said | None = None
    for line in lines:
        if match := _SAID.fullmatch(line):
            if said is not None:
                yield said
            said = Said(int(match[1] or 1), match[2], match[3], [])
        else:
            assert said is not None and _BYTES.fullmatch(line), f"neither words nor bytes: {line!r}"
            said.lines.append(line)
    if said is not None:
        yield said


def bytes_of(lines: list[str]) -> bytes:
    """Return the bytes of lines without their explanations."""
    matches = [_BYTES.fullmatch(line) for line in lines]
    return b"".join(bytes.fromhex(match[2]) for match in matches if match)


def play(block: ThriftBlock, *, piece_bytes: int | None = None) -> list[bytes]:
    """Play an example with calls in pieces, and return its frames. Fail if the server behaves differently."""
    playing = Playing(block.config, ("thrift", "thrift"), piece_bytes, keeps_scrolls=block.keeps_scrolls)
    calls: dict[int, list[str]] = {1: [], 2: []}
    unanswered: dict[int, list[str]] = {1: [], 2: []}
    frames = []
    for (number, direction), group in groupby(block.said, key=lambda said: said[:2]):
        together = list(group)
        if direction == "--":
            for said in together:
                playing.happen(number, said.words)
        elif direction == ">":
            playing.nothing_is_said()
            for said in together:
                calls[number].append(said.words)
                unanswered[number].append(said.words)
                frame = call(said.words, len(calls[number]))
                assert not said.lines or bytes_of(said.lines) == frame, said.words
                frames.append(frame)
            playing.send(playing.client(number), b"".join(frames[-len(together) :]))
        else:
            told = list(frames_in(playing.client(number).take()))
            asked = [unanswered[number].pop(0) for _ in told]
            assert [reply(words, frame) for words, frame in zip(asked, told, strict=True)] == [
                said.words for said in together
            ]
            for said, frame in zip(together, told, strict=True):
                assert not said.lines or bytes_of(said.lines) == frame, said.words
            frames += told
    playing.it_is_over()
    return frames


def frames_in(data: bytes) -> Iterator[bytes]:
    """Yield the frames with their lengths. Each must be complete."""
    while data:
        (size,) = struct.unpack_from(">i", data)
        assert 0 < size <= len(data) - 4
        yield data[: 4 + size]
        data = data[4 + size :]


# Words and bytes.


def call(words: str, number: int) -> bytes:
    """Return the frame of a call in words, encoded by thriftpy2."""
    name_given = _AS.search(words)
    if name_given is not None:
        header = written(TRACING.RequestHeader(trace_id=1, span_id=1, client_id=TRACING.ClientId(name_given[1])))
        return binary.frame(header, call(_AS.sub("", words), number)[binary.LENGTH_BYTES :])
    is_strict = not words.endswith(NOT_STRICT)
    expression = ast.parse(words.removesuffix(NOT_STRICT), mode="eval").body
    assert isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name)
    name = expression.func.id
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer, strict_write=is_strict)
    protocol.write_message_begin(name, binary.CALL, number)
    if name in IDL.Kestrel.thrift_services:
        getattr(IDL.Kestrel, f"{name}_args")(*map(_argument, expression.args)).write(protocol)
    else:
        buffer.write(binary.END)
    protocol.write_message_end()
    return binary.frame(buffer.getvalue())


def _argument(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return getattr(IDL.Status, node.id)
    return ast.literal_eval(node)


def reply(call_words: str, frame: bytes) -> str:
    """Return a reply in words, decoded by thriftpy2."""
    name = call_words.partition("(")[0]
    message = frame[binary.LENGTH_BYTES :]
    if _AS.search(call_words):
        message = without_header(message)
    protocol = TBinaryProtocol(TMemoryBuffer(message), strict_read=False, decode_response=False)
    answered, kind, _ = protocol.read_message_begin()
    assert answered == name
    if kind == binary.EXCEPTION:
        error = TApplicationException()
        error.read(protocol)
        return f"exception {error.type}: {_text(error.message)}"
    if name == UPGRADE:
        assert message.endswith(binary.END)
        return "void"
    result = getattr(IDL.Kestrel, f"{name}_result")()
    result.read(protocol)
    if getattr(result, "refused", None) is not None:
        return f"refused: {_text(result.refused.reason)}"
    if name == "current_status":
        return str(IDL.Status._VALUES_TO_NAMES[result.success])
    return _in_words(getattr(result, "success", ...))


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _in_words(value: Any) -> str:
    if value is ...:
        return "void"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_words, value))}]"
    if isinstance(value, IDL.Item | IDL.QueueInfo | IDL.RangeItem | IDL.RangeState):
        fields = [spec[1] for _, spec in sorted(value.thrift_spec.items())]
        told = ((field, getattr(value, field)) for field in fields)
        return f"{type(value).__name__}({', '.join(f'{f}={_in_words(v)}' for f, v in told if v is not None)})"
    return str(value) if isinstance(value, int) else f'"{_text(value)}"'


# Lines of bytes.


def is_true(line: str) -> bool:
    """Return whether the texts and the number in the explanation of a line are those of its bytes."""
    match = _BYTES.fullmatch(line)
    assert match is not None
    data, words = bytes.fromhex(match[2]), line[match.end(2) :].strip()
    number = _NUMBER.fullmatch(words)
    is_text_there = all(text[:5].encode("latin-1") in data for text in re.findall('"([^"]*)"', words))
    return is_text_there and (number is None or data.endswith(int(number[1]).to_bytes(8, "big", signed=True)[-4:]))
