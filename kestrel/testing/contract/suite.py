"""`StorageContract`, which a backend's test class inherits, and `OnFaultyDisk` for one whose disk can fail."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from kestrel.errors import QueueFailed
from kestrel.storage.capabilities import CAPABILITIES
from kestrel.testing.contract.backend import Backend, Subject
from kestrel.testing.contract.commits import CommitTests
from kestrel.testing.contract.contents import ContentsTests
from kestrel.testing.contract.disk_faults import CommitFailureTests, DiskFaultTests
from kestrel.testing.contract.fanout import SharedFanoutTests
from kestrel.testing.contract.history import HistoryTests
from kestrel.testing.contract.needs import left_out, needed_by, reason_for
from kestrel.testing.contract.ranges import RangeTests
from kestrel.testing.contract.reads import ReadTests
from kestrel.testing.contract.restarts import RestartTests
from kestrel.testing.contract.upkeep import UpkeepTests
from kestrel.testing.contract.window import WindowFaultTests, WindowTests
from kestrel.testing.faults import MortalDisk


class StorageContract(
    ContentsTests,
    ReadTests,
    WindowTests,
    CommitTests,
    RestartTests,
    UpkeepTests,
    CommitFailureTests,
    WindowFaultTests,
    DiskFaultTests,
    RangeTests,
    SharedFanoutTests,
    HistoryTests,
):
    """Inherit this, name the factory, and say how to make a storage: the tests are all that it has to pass.

    Those that its capabilities and hooks do not call for are skipped by name. A class that has only one of `factory`
    and `make` raises TypeError when it is made: pytest would leave it out without a word.
    """

    left_out: ClassVar[dict[str, str]] = {}
    """The tests that this backend need not pass, and why."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.left_out = {}
        has_make = not getattr(cls.make, "__isabstractmethod__", False)
        if has_make != hasattr(cls, "factory"):
            missing = "factory, the backend's IStorageFactory" if has_make else "make, which gives a storage"
            raise TypeError(f"{cls.__name__} has no {missing}: no test of the contract could run")
        if not has_make:
            return
        for name in [name for name in dir(StorageContract) if name.startswith("test_")]:
            reasons = [reason_for(each) for each in needed_by(getattr(StorageContract, name)) if not cls._has(each)]
            if reasons:
                cls.left_out[name] = reasons[0]
                setattr(cls, name, left_out(name, reasons[0]))

    @classmethod
    def _has(cls, needed: str) -> bool:
        return needed in cls.factory.capabilities if needed in CAPABILITIES else bool(getattr(cls, needed))


class OnFaultyDisk(Backend):
    """Mix this in before `StorageContract` when `make` hands `self.disk` to the storage: it will fail and die there.

    Each storage has a disk of its own, on which syncs are remembered and not made.
    """

    disk = MortalDisk()

    def refuse_puts(self, subject: Subject) -> None:
        """The disk is full: found by a commit, which may fail."""
        queue = subject.queue(b"finds-the-disk-full")
        subject.faulty_disk.room = 0
        subject.put(queue, b"x")
        with suppress(QueueFailed):
            subject.commit(queue)
        subject.check_that_its_disk_is_used()
