"""The hex dumps of a page."""

from __future__ import annotations

import re
from typing import Final

_LINE: Final = re.compile(r"([0-9a-f]{8})  ([0-9a-f ]{48})  \|(.*)\|")


def dumps_in(page: str) -> list[tuple[int, bytes]]:
    """Return the start offset and bytes of each dump. Its offsets, bytes and characters must agree."""
    return [_dump(block) for block in re.findall(r"^```hexdump\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]


def _dump(block: str) -> tuple[int, bytes]:
    *lines, end = block.splitlines()
    start, data = int(lines[0][:8], 16), b""
    for line in lines:
        match = _LINE.fullmatch(line)
        assert match, f"no line of a hex dump: {line!r}"
        row = bytes.fromhex(match[2])
        assert int(match[1], 16) == start + len(data)
        assert match[3] == "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        data += row
    assert int(end, 16) == start + len(data)
    return start, data
