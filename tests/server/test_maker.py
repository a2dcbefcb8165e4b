"""What belongs to the process is settled before the server in it is made."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from kestrel.server import maker
from kestrel.server.startup_errors import EX_CONFIG, CannotServe


def test_the_limit_of_open_files_is_raised_before_the_storage_counts_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def service(*args: object, **options: object) -> None:
        done.append("server made")
        raise CannotServe("enough was seen", EX_CONFIG)

    monkeypatch.setattr(maker, "raise_file_limit", lambda: done.append("limit raised"))
    monkeypatch.setattr(maker, "KestrelService", service)
    with pytest.raises(SystemExit) as ended:
        maker.Daemon(Clock(), maker.Options())
    assert ended.value.code == EX_CONFIG
    assert done == ["limit raised", "server made"]
    assert capfd.readouterr().err == "kestrel: enough was seen\n"
