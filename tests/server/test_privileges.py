"""Files that are made before root's privileges are dropped belong to the user. The tests do not run as root."""

from __future__ import annotations

import os

import pytest
from twisted.internet.task import Clock

from kestrel.config.model import Config
from kestrel.server import maker, process
from kestrel.server.process import call_as_user
from kestrel.server.startup_errors import EX_CONFIG, CannotServe


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The identity of the process, as root would change it."""
    done: list[str] = []
    ids = {"uid": 0, "gid": 0}

    def become(kind: str, number: int) -> None:
        ids[kind] = number
        done.append(f"{kind} {number}")

    monkeypatch.setattr(os, "geteuid", lambda: ids["uid"])
    monkeypatch.setattr(os, "getegid", lambda: ids["gid"])
    monkeypatch.setattr(os, "seteuid", lambda number: become("uid", number))
    monkeypatch.setattr(os, "setegid", lambda number: become("gid", number))
    monkeypatch.setattr(process.pwd, "getpwuid", lambda uid: _User(uid + 1))
    return done


class _User:
    def __init__(self, gid: int) -> None:
        self.pw_gid = gid


def test_user_makes_it_and_root_is_restored(done: list[str]) -> None:
    assert call_as_user(7, 8, lambda: done.append("made") or "it") == "it"
    at = done.index("made")
    assert set(done[:at]) == {"gid 8", "uid 7"}
    assert (os.geteuid(), os.getegid()) == (0, 0)


def test_root_is_restored_after_a_failure(done: list[str]) -> None:
    def fails() -> None:
        raise PermissionError

    with pytest.raises(PermissionError):
        call_as_user(7, 8, fails)
    assert (os.geteuid(), os.getegid()) == (0, 0)


def test_default_group_is_that_of_the_user(done: list[str]) -> None:
    call_as_user(7, None, lambda: done.append("made"))
    assert set(done[: done.index("made")]) == {"gid 8", "uid 7"}


@pytest.mark.parametrize(("uid", "gid", "euid"), [(None, None, 0), (7, 8, 1000)], ids=["not asked for", "not root"])
def test_otherwise_no_identity_changes(
    done: list[str], monkeypatch: pytest.MonkeyPatch, uid: int | None, gid: int | None, euid: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    call_as_user(uid, gid, lambda: done.append("made"))
    assert done == ["made"]


def test_user_opens_the_log(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened:
        def __init__(self, settings: object) -> None:
            done.append("log opened")

    def service(*args: object, **options: object) -> None:
        done.append("server made")
        raise CannotServe("enough was seen", EX_CONFIG)

    monkeypatch.setattr(maker, "ServerLog", Opened)
    monkeypatch.setattr(maker, "KestrelService", service)
    options = maker.Options()
    options.settings = Config()
    options.parent = {"uid": 7, "gid": 8, "nodaemon": True}  # a daemon would replace sys.__stderr__
    with pytest.raises(SystemExit):
        maker.Daemon(Clock(), options)
    opened = done.index("log opened")
    assert {"uid 7", "gid 8"} <= set(done[:opened])
    assert {"uid 0", "gid 0"} <= set(done[opened : done.index("server made")])
