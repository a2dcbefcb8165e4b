"""Targets find planted faults, and repaired inputs are well-formed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kestrel.client.errors import ServerError
from kestrel.client.memcache import MemcacheCalls
from kestrel.commands import Malformed
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.testing.server import MemoryControl
from kestrel.testing.transport import READ_BYTES
from tests.fuzz import journal_inputs, scroll_inputs, target
from tests.fuzz.choices import Choices, with_choices
from tests.fuzz.codecs import check_codec
from tests.fuzz.replies import check_replies
from tests.fuzz.targets import memcache, thrift
from tests.journal import reference
from tests.journal.handwritten import addx
from tests.scroll.handwritten import READER, WRITER, put, read_done, sealed

TARGETS = "tests.fuzz.targets"
STREAM = b"get work\r\nset work 0 0 1\r\nx\r\n"


def thrift_call(method: str) -> bytes:
    """Return the call of an input in the corpus, without its choices."""
    choices = Choices((target.CORPUS / "thrift" / method).read_bytes())
    thrift.choose(choices)
    return choices.rest()


class FaultyCodec:
    """A codec with a fault; subclasses define it."""

    def __init__(self) -> None:
        self._codec: Any = MemcacheCodec()

    def __len__(self) -> int:
        return len(self._codec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)


class DroppingCodec(FaultyCodec):
    """Drops the second piece of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = self
        self.pieces = 0

    def receive(self, data: bytes) -> None:
        self.pieces += 1
        if self.pieces != 2:
            self._codec.buffer.receive(data)


class HoardingCodec(FaultyCodec):
    def __len__(self) -> int:
        return len(self._codec) + 50


class RepeatingCodec(FaultyCodec):
    """Returns a command without any input, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._has_ended = False

    def next_command(self) -> object:
        self._has_ended = not self._has_ended
        return Malformed("no", closes=True) if self._has_ended else None

    def __len__(self) -> int:
        return 0


class FailingCodec(FaultyCodec):
    def next_command(self) -> object:
        raise KeyError("work")


@pytest.mark.parametrize("codec", [DroppingCodec, HoardingCodec, RepeatingCodec, FailingCodec])
def test_faulty_codec_is_found(codec: type[FaultyCodec]) -> None:
    check_codec(MemcacheCodec, STREAM, [4, 5, 6], 40)
    with pytest.raises((AssertionError, KeyError)):
        check_codec(codec, STREAM, [4, 5, 6], 40)  # type: ignore[arg-type]


def test_fault_that_only_single_bytes_show_is_found() -> None:
    with pytest.raises(AssertionError):
        check_codec(DroppingCodec, STREAM, [], 40)  # type: ignore[arg-type]


def test_logged_error_of_a_session_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = target.load("memcache_session").check
    request = with_choices(b"dump_config\r\n", 0, 0)
    check(request)
    monkeypatch.setattr(MemoryControl, "iter_config", partial(_raise, KeyError("work")))
    with pytest.raises(AssertionError, match="A command failed"):
        check(request)


def test_unbounded_replies_to_an_idle_client_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = target.load("memcache_session")
    data = (target.CORPUS / "memcache_session" / "reads-nothing").read_bytes()
    chosen.check(data)
    monkeypatch.setattr("tests.fuzz.sessions.MAX_UNSENT_BYTES", READ_BYTES // 2)
    with pytest.raises(AssertionError):
        chosen.check(data)


def test_thrift_call_without_reply_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = target.load("thrift_session").check
    call = with_choices(thrift_call("get_version"), 0, 0)
    check(call)
    monkeypatch.setattr(f"{TARGETS}.thrift_session._replies_in", lambda received, is_whole: [])
    with pytest.raises(AssertionError):
        check(call)


def test_reply_that_depends_on_pieces_is_found() -> None:
    calls = MemcacheCalls()
    check_replies(calls.version, b"VERSION 1\r\n", [3])
    made = iter([calls.version(), calls.status()])
    with pytest.raises(AssertionError):
        check_replies(lambda: next(made), b"VERSION 1\r\n", [3])


def test_unexpected_client_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, raised in ((ServerError("no"), ()), (KeyError("x"), KeyError)):
        call = MemcacheCalls().version()
        monkeypatch.setattr(call, "read", partial(_raise, error))
        if raised:
            with pytest.raises(raised):
                check_replies(lambda call=call: call, b"VERSION 1\r\n", [3])
        else:
            check_replies(lambda call=call: call, b"VERSION 1\r\n", [3])


def _raise(error: Exception, *_: object) -> None:
    raise error


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("journal", addx(b"a") + with_choices(b"", 0, 0), "kestrel.journal.replay._replay_run"),
        ("journal_start", addx(b"a"), "kestrel.storage.journal.load.replay"),
        ("scroll_writer", with_choices(WRITER + put(1, b"a"), 0, 0), f"{TARGETS}.scroll_writer.index_writer_file"),
        ("scroll_reader", with_choices(b"", 0), f"{TARGETS}.scroll_reader.read_state"),
        ("scroll_start", with_choices(WRITER + put(1, b"a"), 0, 0), f"{TARGETS}.scroll_start.queues_in"),
        ("config", b"x = 1", f"{TARGETS}.config.load"),
        ("units", b"1s", f"{TARGETS}.units.parse_size"),
        ("scala", b"new KestrelConfig", f"{TARGETS}.scala.loads"),
        ("qdump", addx(b"a") + with_choices(b"", 0, 1, 0), f"{TARGETS}.qdump.main"),
        ("pem", with_choices(b"x", 0), f"{TARGETS}.pem.load_certificates"),
    ],
)
def test_unexpected_exception_is_found(monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, what: str) -> None:
    check = target.load(name).check
    check(data)
    monkeypatch.setattr(what, partial(_raise, KeyError("planted")))
    with pytest.raises((KeyError, AssertionError)):
        check(data)


# Repairs.


def test_repair_of_a_set_corrects_its_length() -> None:
    broken = b"get a\r\nset work 0 0 99\r\nhello\r\nset b 0 0 x\r\n"
    assert memcache.repaired(broken) == b"get a\r\nset work 0 0 5\r\nhello\r\nset b 0 0 x\r\n"


def test_repair_of_frames_corrects_their_lengths() -> None:
    good = thrift_call("get") + thrift_call("abort")
    broken = bytearray(good)
    broken[3] ^= 9
    broken[len(thrift_call("get"))] = 7
    assert thrift.repaired(bytes(broken)) == good == thrift.repaired(good)


def test_journal_repair_makes_it_valid_and_keeps_valid_ones() -> None:
    good = b"".join((target.CORPUS / "journal_start" / name).read_bytes() for name in ("old", "reads", "continued"))
    assert journal_inputs.repaired(good) == good
    broken = b"\x0c" + addx(b"a") + b"\x02\xff\xff\xff\x7f" + addx(b"b" * 40)
    assert reference.read(broken).problem == "damaged"
    assert reference.read(journal_inputs.repaired(broken)).end > len(broken) // 2


def test_scroll_repair_makes_it_valid_and_keeps_valid_ones() -> None:
    good = WRITER + put(1, b"a") + read_done(1, 2) + put(2, b"b" * 30)
    assert scroll_inputs.repaired(good, WRITER) == good
    broken = bytearray(b"????" + good[4:])
    broken[5] = 0xFF
    assert scroll_inputs.repaired(bytes(broken), WRITER)[:9] == good[:4] + b"\x86\x00\x00\x00\x00"


def test_repair_of_a_reader_file_corrects_its_checksums() -> None:
    good = sealed(read_done(1, 2), read_done(3))
    assert scroll_inputs.repaired(good, READER) == good
    changed = good.replace(read_done(3), read_done(4))
    assert scroll_inputs.repaired(changed, READER) == sealed(read_done(1, 2), read_done(4))
