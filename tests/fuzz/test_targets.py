"""Targets find what is wrong: a fault that is planted is a finding. And seeds and mended inputs are well-formed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kestrel.client.errors import ServerError
from kestrel.client.memcache import MemcacheCalls
from kestrel.commands import Malformed
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.protocols.thrift import ThriftCodec
from kestrel.testing.server import MemoryControl
from kestrel.testing.transport import READ_BYTES
from tests.fuzz import journals, scrolls, spoken, target
from tests.fuzz.codecs import check_codec, commands_in
from tests.fuzz.fed import fed
from tests.fuzz.replies import check_replies
from tests.fuzz.targets import memcache
from tests.journal import reference
from tests.journal.handwritten import addx
from tests.scroll.handwritten import READER, WRITER, put, read_done, sealed

STREAM = b"get work\r\nset work 0 0 1\r\nx\r\n"


class Wrapped:
    """A codec with a fault."""

    def __init__(self) -> None:
        self._codec: Any = MemcacheCodec()
        self.pieces = 0

    def receive(self, data: bytes) -> None:
        self._codec.receive(data)

    def __len__(self) -> int:
        return len(self._codec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)


class Forgetful(Wrapped):
    def receive(self, data: bytes) -> None:
        self.pieces += 1
        if self.pieces != 2:
            self._codec.receive(data)


class Hoarding(Wrapped):
    def __len__(self) -> int:
        return len(self._codec) + 50


class Talkative(Wrapped):
    """Makes something of nothing, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._is_over = False

    def next_command(self) -> object:
        self._is_over = not self._is_over
        return Malformed("no", closes=True) if self._is_over else None

    def __len__(self) -> int:
        return 0


class Failing(Wrapped):
    def next_command(self) -> object:
        raise KeyError("work")


@pytest.mark.parametrize("codec", [Forgetful, Hoarding, Talkative, Failing])
def test_a_codec_with_a_fault_is_found(codec: type[Wrapped]) -> None:
    check_codec(MemcacheCodec, STREAM, [4, 5, 6], 40)
    with pytest.raises((AssertionError, KeyError)):
        check_codec(codec, STREAM, [4, 5, 6], 40)  # type: ignore[arg-type]


def test_a_fault_of_a_codec_that_only_single_bytes_show_is_found() -> None:
    with pytest.raises(AssertionError):
        check_codec(Forgetful, STREAM, [], 40)  # type: ignore[arg-type]


def test_an_error_that_a_session_logs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = target.load("memcache_session").check
    request = fed(b"dump_config\r\n", 0, 0)
    check(request)
    monkeypatch.setattr(MemoryControl, "iter_config", partial(_raise, KeyError("work")))
    with pytest.raises(AssertionError, match="A command failed"):
        check(request)


def test_a_server_that_makes_replies_for_who_reads_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = target.load("memcache_session")
    data = chosen.seeds()["reads-nothing"]
    chosen.check(data)
    monkeypatch.setattr("tests.fuzz.sessions.MOST_UNSENT_BYTES", READ_BYTES // 2)
    with pytest.raises(AssertionError):
        chosen.check(data)


def test_a_call_of_thrift_without_its_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = target.load("thrift_session").check
    call = fed(spoken.thrift_calls()["get_version"], 0, 0)
    check(call)
    monkeypatch.setattr("tests.fuzz.targets.thrift_session._replies_in", lambda received, is_whole: [])
    with pytest.raises(AssertionError):
        check(call)


def test_a_reply_that_is_read_differently_in_pieces_is_found() -> None:
    calls = MemcacheCalls()
    check_replies(calls.version, b"VERSION 1\r\n", [3])
    made = iter([calls.version(), calls.status()])
    with pytest.raises(AssertionError):
        check_replies(lambda: next(made), b"VERSION 1\r\n", [3])


def test_an_error_that_is_no_failure_of_a_client_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("journal", addx(b"a") + fed(b"", 0, 0), "kestrel.journal.replay.replay_part"),
        ("journal_start", addx(b"a"), "kestrel.storage.journal.load.replay"),
        ("scroll_writer", WRITER + put(1, b"a") + fed(b"", 0, 0), "tests.fuzz.targets.scroll_writer.index_writer_file"),
        ("scroll_reader", fed(b"", 0), "tests.fuzz.targets.scroll_reader.read_state"),
        ("scroll_start", fed(WRITER + put(1, b"a"), 0, 0), "tests.fuzz.targets.scroll_start.queues_in"),
        ("config", b"x = 1", "tests.fuzz.targets.config.load"),
        ("units", b"1s", "tests.fuzz.targets.units.parse_size"),
        ("scala", b"new KestrelConfig", "tests.fuzz.targets.scala.loads"),
        ("qdump", addx(b"a") + fed(b"", 0, 1, 0), "tests.fuzz.targets.qdump.main"),
        ("pem", fed(b"x", 0), "tests.fuzz.targets.pem.load_certificates"),
    ],
)
def test_an_exception_that_nobody_promised_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, what: str
) -> None:
    check = target.load(name).check
    check(data)
    monkeypatch.setattr(what, partial(_raise, KeyError("planted")))
    with pytest.raises((KeyError, AssertionError)):
        check(data)


# Mending.


def test_a_set_is_mended_to_the_length_that_its_item_has() -> None:
    broken = b"get a\r\nset work 0 0 99\r\nhello\r\nset b 0 0 x\r\n"
    assert memcache.mended(broken) == b"get a\r\nset work 0 0 5\r\nhello\r\nset b 0 0 x\r\n"


def test_frames_are_mended_to_the_lengths_that_they_have() -> None:
    calls = spoken.thrift_calls()
    good = calls["get"] + calls["abort"]
    broken = bytearray(good)
    broken[3] ^= 9
    broken[len(calls["get"])] = 7
    assert spoken.mended_frames(bytes(broken)) == good == spoken.mended_frames(good)


def test_a_mended_journal_is_good_and_a_good_one_stays_as_it_is() -> None:
    good = b"".join(contents for name, contents in journals.seeds().items() if name in ("reads", "old", "continued"))
    assert journals.mended(good) == good
    broken = b"\x0c" + addx(b"a") + b"\x02\xff\xff\xff\x7f" + addx(b"b" * 40)
    assert reference.read(broken).problem == "damaged"
    assert reference.read(journals.mended(broken)).end > len(broken) // 2


def test_a_mended_scroll_is_good_and_a_good_one_stays_as_it_is() -> None:
    good = WRITER + put(1, b"a") + read_done(1, 2) + put(2, b"b" * 30)
    assert scrolls.mended(good, WRITER) == good
    broken = bytearray(b"????" + good[4:])
    broken[5] = 0xFF
    assert scrolls.mended(bytes(broken), WRITER)[:9] == good[:4] + b"\x86\x00\x00\x00\x00"


def test_a_mended_reader_file_has_matching_checksums() -> None:
    good = sealed(read_done(1, 2), read_done(3))
    assert scrolls.mended(good, READER) == good
    assert scrolls.mended(good.replace(read_done(3), read_done(4)), READER) == sealed(read_done(1, 2), read_done(4))


def test_a_call_of_each_method_is_one_command() -> None:
    for stream in spoken.thrift_calls().values():
        assert len(commands_in(ThriftCodec(200, 100, 10), [stream], 200)) == 1
