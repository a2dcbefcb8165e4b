"""Queue names that try to reach files outside the queue folder, or other files inside it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.abuse.abuse_process import Place
from kestrel.errors import BadQueueName
from kestrel.names import check_queue_name
from tests.server.running import Server

CANARY: Final = "nobody is to touch this\n"
FILES: Final[Mapping[str, str]] = {
    "canary": CANARY,
    "other/canary": CANARY,
    "queues/notes.txt": CANARY,
    "queues/.hidden": CANARY,
    "queues/folder/work": CANARY,
    "queues/work~~what~~is~~this": CANARY,
}
"""Files that exist before the server starts."""

NAMES: Final = (
    *(b"../canary", b"../../canary", b"..", b".", b"/tmp/canary", b"//", b"a/../../canary", b"folder/work", b"~"),
    *(b"work~~1", b"work~~1.pack", b"work~~", b"work.1", b"work.pack", b"work.tmp", b"notes.txt", b".hidden", b".lock"),
    *(b"work~~what~~is~~this", b"canary\0", b"../canary\0x", b"\0", b"%2e%2e%2fcanary", b"..\\canary", b"C:\\canary"),
    *(b"\xc0\xae\xc0\xae\xc0\xafcanary", b"\xff\xfe", b"\xe2\x80\xae", b"x" * 200, b"x" * 201, b"x" * 5000, b"+"),
    *(b"++", b"+x", b"x+", b"work+..", b"work+../canary", b"work+" * 30, b"-", b"-rf", b"$(touch canary)", b"~root"),
    *(b"`touch canary`", b";", b"*", b"|", b"CON", b"nul", b"lost+found", b"\x7f", b"\x1b[2J", b"scroll", b"LOCK"),
    *(b"status", b"work\x85", b"\xa0"),
)


def nasty_names(place: Place) -> None:
    """Use each name over each protocol, in puts, gets, flushes and deletes."""
    while place.goes_on():
        for name in NAMES:
            if not place.goes_on():
                return
            for protocol, requests in _requests(name).items():
                for request in requests:
                    with place.connect(protocol) as client, suppress(ConnectionError):
                        client.send(request)
                        client.stop_sending()
                        reply = client.to_the_end()
                        refused = b"ERROR" in reply or reply.startswith(b"-") or b"queue name" in reply
                        place.fates["refused" if refused else "carried out"] += 1


def _requests(name: bytes) -> dict[str, Sequence[bytes]]:
    return {
        "memcache": (
            b"set %b 0 0 1\r\nx\r\n" % name,
            b"get %b\r\nget %b/open\r\nget %b/peek\r\n" % (name, name, name),
            b"flush %b\r\ndelete %b\r\n" % (name, name),
        ),
        "text": (b"put %b:\nx\n\nget %b\n" % (name, name), b"flush %b\ndelete %b\n" % (name, name)),
        "thrift": (_thrift(b"put", name), _thrift(b"peek", name), _thrift(b"delete_queue", name)),
    }


def _thrift(method: bytes, name: bytes) -> bytes:
    fields = b"\x0b\0\1" + struct.pack(">I", len(name)) + name
    if method == b"put":
        fields += b"\x0f\0\2" + struct.pack(">biI", 11, 1, 1) + b"x"
    message = struct.pack(">II", 0x8001_0001, len(method)) + method + struct.pack(">I", 1) + fields + b"\0"
    return struct.pack(">I", len(message)) + message


def nothing_touched(server: Server) -> list[str]:
    """Check that no file was changed, and that new files are in the queue folder and belong to queues."""
    root = server.output.parent
    wrong = []
    for name, text in FILES.items():
        if not (root / name).is_file() or (root / name).read_text() != text:
            wrong.append(f"{name} was changed")
    for path in sorted(each for each in root.rglob("*") if each.is_file()):
        name = str(path.relative_to(root))
        if name in FILES or (path.parent == root and name.partition(".")[0] in ("server-0", "kestrel")):
            continue
        if not path.is_relative_to(root / "queues") or not _is_of_a_queue(path.relative_to(root / "queues")):
            wrong.append(f"{name!r} should not exist")
    return wrong


def _is_of_a_queue(path: Path) -> bool:
    # The server's own files.
    if path.parts[0] == ".kestrel":
        return True
    name = str(path).encode("utf-8", "surrogateescape")
    with suppress(BadQueueName):
        check_queue_name(name.partition(b".")[0].partition(b"~~")[0])
        return True
    return False

