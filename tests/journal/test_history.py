"""The history of a journal: its offsets stay valid through rotations and replacements."""

from __future__ import annotations

from kestrel.journal.fileset import History


def history(*sizes: int) -> History:
    """Return a history of the queue "work" with rotated files 1, 2, ... of these sizes."""
    journal = History(b"work")
    for number, size in enumerate(sizes, 1):
        journal.rotate(number, size)
    return journal


def test_new_history_is_the_current_file() -> None:
    assert history().file_at(0) == (b"work", 0, None)


def test_offset_belongs_to_the_file_that_was_current() -> None:
    journal = history(10, 20)
    assert [journal.file_at(offset)[0] for offset in (0, 9, 10, 29, 30, 99)] == [
        b"work.1",
        b"work.1",
        b"work.2",
        b"work.2",
        b"work",
        b"work",
    ]
    assert journal.file_at(15) == (b"work.2", 10, 30)
    assert journal.file_at(30) == (b"work", 30, None)


def test_empty_rotated_file_has_no_offset() -> None:
    assert history(10, 0, 5).file_at(10)[0] == b"work.3"


def test_rotated_bytes_is_the_sum_of_sizes() -> None:
    assert history(10, 20).rotated_bytes == 30


def test_replacement_ends_where_the_replaced_files_ended() -> None:
    journal = history(10, 20, 30)
    span = journal.replace_up_to(2, 7)
    assert (span.start, span.end) == (23, 30)
    assert journal.file_at(23) == (b"work.2", 23, 30)
    assert journal.file_at(30) == (b"work.3", 30, 60)
    assert journal.file_at(60) == (b"work", 60, None)
    assert journal.rotated_bytes == 37


def test_replacement_may_be_larger_than_the_replaced_files() -> None:
    journal = history(10)
    assert journal.replace_up_to(1, 25)[2:] == (-15, 10)
    assert journal.rotated_bytes == 25


def test_empty_replacement_has_no_file() -> None:
    journal = history(10, 20)
    journal.replace_up_to(2, 0)
    assert (journal.rotated, journal.rotated_bytes) == ([], 0)


def test_file_found_under_another_name_keeps_it() -> None:
    journal = history()
    journal.rotate(1, 5, b"work.0001")
    assert journal.file_at(0)[0] == b"work.0001"
