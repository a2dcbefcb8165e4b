"""A planned file is found under any name, read to its planned end, and never confused with another."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.spark.table.planned_file import PlannedFile, PlannedReader
from tests.journal.handwritten import addx
from tests.spark.tables import planned_files

A, B = addx(b"a" * 400), addx(b"b" * 400)


def planned(path: Path) -> PlannedFile:
    [file] = planned_files(path)
    return file


def read(file: PlannedFile) -> bytes:
    with PlannedReader(Disk(), file) as reader:
        return reader.read(0, 1 << 20)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").write_bytes(A)
    return tmp_path / "work"


def test_renamed_file_is_found_if_name_is_reused(work: Path) -> None:
    file = planned(work)
    work.rename(work.with_name("work.5"))
    assert read(file) == A
    work.write_bytes(B)
    assert read(file) == A


def test_link_to_a_renamed_file_is_found(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "data"
    target.parent.mkdir()
    target.write_bytes(A)
    (tmp_path / "work").symlink_to(target)
    file = planned(tmp_path / "work")
    (tmp_path / "work").rename(tmp_path / "work.5")
    (tmp_path / "work").write_bytes(B)
    assert read(file) == A


def test_file_renamed_when_it_is_found_is_searched_again(work: Path) -> None:
    file = planned(work)
    work.rename(work.with_name("work.5"))

    class Renaming(Disk):
        def open_read(self, path: bytes) -> int:
            if path.endswith(b"work.5"):
                os.rename(path, path + b"0")
            return super().open_read(path)

    with PlannedReader(Renaming(), file) as reader:
        assert reader.read(0, len(A)) == A


def test_erased_file_is_missing_if_name_is_reused(work: Path) -> None:
    file = planned(work)
    work.with_name("held").hardlink_to(work)  # so that its number is not used again
    work.unlink()
    work.write_bytes(B)
    assert read(file) == A, "a second name"
    work.with_name("held").unlink()
    work.with_name("other").write_bytes(B)  # which may have its number
    with pytest.raises(FileNotFoundError):
        read(file)


@pytest.mark.parametrize("contents", [B, B + B, A[:-1] + b"b", b"\0" + A[1:]])
def test_another_file_with_the_same_number_is_recognised(work: Path, contents: bytes) -> None:
    """File systems use the number of an erased file again."""
    file = planned(work)
    work.unlink()
    work.write_bytes(contents)
    reused = replace(file, number=work.stat().st_ino)
    with pytest.raises(FileNotFoundError):
        read(reused)


def test_file_is_recognised_on_a_machine_with_another_device_number(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = planned(work)
    of_this_machine = os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        state = list(of_this_machine(descriptor))
        state[2] += 1  # st_dev
        return os.stat_result(state)

    monkeypatch.setattr(os, "fstat", of_another)
    assert read(file) == A


def test_file_with_an_unreadable_beginning_is_known_by_its_number(work: Path) -> None:
    file = planned(work)
    unknown = replace(file, sample=None)
    assert read(unknown) == A
    with pytest.raises(FileNotFoundError):
        read(replace(unknown, number=1))


@pytest.mark.parametrize("spoilt", ["gone", "cut", "another"])
def test_no_descriptor_is_left_open(work: Path, spoilt: str) -> None:
    file = planned(work)
    if spoilt == "cut":
        work.write_bytes(b"")
    else:
        work.unlink()
        if spoilt == "another":
            work.write_bytes(B)
            file = replace(file, number=work.stat().st_ino)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError):
        read(file)
    assert len(os.listdir("/proc/self/fd")) == len(before)
