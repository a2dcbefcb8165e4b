"""A model of a queue: its states over time, and the states that a start after a crash may find.

Items are numbers. Each number is put at most once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from kestrel.item import Item

ADD_MS: Final = 1_700_000_000_000


def item_of(number: int) -> tuple[bytes, int, int]:
    """Return data (0 to 100 bytes; item 2 is empty), add time and expiry of the item with that number."""
    data = (b"%d." % number * 100)[: (37 * number + 27) % 101]
    return data, ADD_MS + number, 0 if number % 3 else ADD_MS + 10**9


def is_short(number: int) -> bool:
    """Whether the item with that number has less than 10 bytes."""
    return len(item_of(number)[0]) < 10


def is_put_off(add_ms: int) -> bool:
    """Whether `IContinue` stores an item with that add time 1 ms later."""
    return add_ms % 256 == 7


def number_of(item: Item) -> int:
    """Return the number of an item. Fail if the item differs from the one that was put."""
    number = item.add_ms - ADD_MS
    found = item.data, item.add_ms, item.expiry_ms
    assert found == item_of(number), f"{found} was never put"
    return number


State: TypeAlias = tuple[int, ...]
"""The items that a start finds, in order."""

Moment: TypeAlias = tuple[int, ...]
"""A position in a history. Later moments are greater."""


class Promise(ABC):
    """The set of states that a start may find. `str()` describes it."""

    @abstractmethod
    def admits(self, found: State) -> bool:
        """Whether a start may find this state."""


class History(ABC):
    """The changes of a queue, and the commits that were acknowledged."""

    def __init__(self, items: State = ()) -> None:
        self.items = list(items)
        """The items that are not open, in order."""
        self.opened: dict[int, int] = {}
        """The number of each open read, by xid."""
        self._beginning = self._acknowledged = self._synced = self._created = self.commit()
        self._deletion: Moment | None = None
        """The moment of a deletion that is not acknowledged."""

    # Changes.

    def put(self, number: int) -> None:
        """Put an item."""
        self.items.append(number)
        self._record(put=number)

    def take(self, number: int, xid: int) -> None:
        """Take the head as an open read, or with xid 0 remove it."""
        assert [number] == self.items[:1], "an item other than the head was taken"
        del self.items[0]
        if xid:
            assert xid not in self.opened
            self.opened[xid] = number
            self._record()
        else:
            self._record(removed=number)

    def confirm(self, xid: int) -> None:
        """Confirm an open read."""
        self._record(removed=self.opened.pop(xid))

    def continue_(self, xid: int, number: int) -> None:
        """Confirm an open read and put an item, both in one record."""
        del self.opened[xid]
        self.items.append(number)
        self._record()

    def put_back(self, xid: int) -> None:
        """Put an open read back at the head."""
        self.items.insert(0, self.opened.pop(xid))
        self._record()

    def clear(self) -> None:
        """Remove all items except for open reads, one after the other."""
        while self.items:
            self._record(removed=self.items.pop(0))

    def delete(self) -> None:
        """Delete the queue. Later changes belong to another queue of the same name."""
        self.items.clear()
        self.opened.clear()
        self._record_deletion()
        self._deletion = self.commit()

    @abstractmethod
    def _record(self, *, put: int | None = None, removed: int | None = None) -> None:
        """Record a change. An item is neither put nor removed if it only moves."""

    @abstractmethod
    def _record_deletion(self) -> None: ...

    # Promises.

    @abstractmethod
    def commit(self) -> Moment:
        """Return the current moment, at which a commit begins."""

    def acknowledge(self, moment: Moment) -> None:
        """The commit that began at that moment is acknowledged. Later changes may be lost."""
        self._acknowledged = moment
        if self._deletion is not None and moment >= self._deletion:
            self._created, self._deletion = self._deletion, None

    def last_acknowledged(self) -> Moment:
        """Return the moment of the last acknowledged commit."""
        return self._acknowledged

    def sync(self, moment: Moment) -> None:
        """Changes that were acknowledged at that moment are durable, because their period is over."""
        self._synced = moment

    def promise(self, sync_journal_ms: int | None, *, has_machine_died: bool) -> Promise:
        """Return the states that a start may find after a crash now.

        A queue whose deletion is not acknowledged may have any state since its creation.
        """
        may_lose_unsynced = has_machine_died and sync_journal_ms != 0
        first = self._acknowledged if self._deletion is None else self._created
        if may_lose_unsynced:
            first = self._beginning if sync_journal_ms is None else min(first, self._synced)
        return self._promise_since(first, may_lose_unsynced)

    @abstractmethod
    def _promise_since(self, first: Moment, may_lose_unsynced: bool) -> Promise: ...

    @abstractmethod
    def on_the_way(self) -> list[State]:
        """Return the states that a start finds before and after each record of the pending batch."""


class OneFile(History):
    """The history of a queue whose records are in one file, in order. A restart puts the open reads first."""

    def __init__(self, items: State = ()) -> None:
        self._states: list[State] = [items]
        super().__init__(items)

    def _record(self, *, put: int | None = None, removed: int | None = None) -> None:
        self._states.append(tuple(self.opened[xid] for xid in sorted(self.opened)) + tuple(self.items))

    def _record_deletion(self) -> None:
        self._record()

    def commit(self) -> Moment:
        """Return the index of the current state."""
        return (len(self._states) - 1,)

    def _promise_since(self, first: Moment, may_lose_unsynced: bool) -> Promise:
        return OneOf(self._states[first[0] :])

    def on_the_way(self) -> list[State]:
        """Return the states since the last acknowledged one."""
        return self._states[self._acknowledged[0] :]


class OneOf(Promise):
    """A promise of one of these states."""

    def __init__(self, states: Sequence[State]) -> None:
        self._states = states

    def admits(self, found: State) -> bool:
        """Whether it is one of the states."""
        return found in self._states

    def __str__(self) -> str:
        states = self._states
        shown = [*map(str, states)] if len(states) < 8 else [*map(str, states[:4]), "...", *map(str, states[-3:])]
        return f"one of {' '.join(shown)}"


class Changes(NamedTuple):
    """The number of earlier deletions of the queue, and of the puts and removals since."""

    deletions: int
    puts: int
    removals: int


class Existence:
    """A queue from its creation to its deletion: the items that were put and removed, each in order."""

    def __init__(self, items: State = ()) -> None:
        self.puts = list(items)
        self.removals: list[int] = []

    def after(self, puts: int, removals: int) -> State:
        """Return the items after that many puts and removals."""
        gone = {*self.removals[:removals]}
        return tuple(number for number in self.puts[:puts] if number not in gone)

    def can_be(self, found: State, puts: int, removals: int, *, may_lack_files: bool) -> bool:
        """Whether the queue may have these items after at least that many puts and removals.

        With `may_lack_files` any removed item may be missing, even if its removal was not written.
        """
        places = {number: place for place, number in enumerate(self.puts)}
        if any(number not in places for number in found) or list(found) != sorted({*found}, key=places.get):
            return False
        if found:
            puts = max(puts, places[found[-1]] + 1)
        removed = {number: place for place, number in enumerate(self.removals)}
        missing = [number for number in self.puts[:puts] if number not in found]
        if may_lack_files:
            missing = [number for number in missing if number not in removed]
        least = max([removals, *(removed.get(number, len(self.removals)) + 1 for number in missing)])
        most = min([len(self.removals), *(removed[number] for number in found if number in removed)])
        return least <= most


class TwoFiles(History):
    """The history of a queue that has its items in one file and their removals in another.

    A crash may leave any part of each file beyond the promised one. A restart restores all items in the order of their
    puts, because open and aborted reads are in no file. A file whose items are all removed is erased, or never synced.
    A power failure may lose it without the removals.
    """

    def __init__(self, items: State = ()) -> None:
        self._existences = [Existence(items)]
        super().__init__(items)

    def _record(self, *, put: int | None = None, removed: int | None = None) -> None:
        if put is not None:
            self._existences[-1].puts.append(put)
        if removed is not None:
            self._existences[-1].removals.append(removed)

    def _record_deletion(self) -> None:
        self._existences.append(Existence())

    def commit(self) -> Moment:
        """Return the `Changes` so far."""
        last = self._existences[-1]
        return Changes(len(self._existences) - 1, len(last.puts), len(last.removals))

    def _promise_since(self, first: Moment, may_lose_unsynced: bool) -> Promise:
        return AtLeast(self._existences, Changes(*first), may_lack_files=may_lose_unsynced)

    def on_the_way(self) -> list[State]:
        """Return the states after each put and then after each removal: items are written first."""
        deletions, puts, removals = self._acknowledged
        last = self._existences[-1]
        assert deletions == len(self._existences) - 1, "the batch deletes the queue"
        states = [last.after(each, removals) for each in range(puts, len(last.puts) + 1)]
        removed = range(removals + 1, len(last.removals) + 1)
        return states + [last.after(len(last.puts), each) for each in removed]


class AtLeast(Promise):
    """A promise of all changes until a moment. Any later puts and removals may be included."""

    def __init__(self, existences: Sequence[Existence], first: Changes, *, may_lack_files: bool) -> None:
        self._existences = existences
        self._first = first
        self._may_lack_files = may_lack_files

    def admits(self, found: State) -> bool:
        """Whether the promised changes can lead to this state."""
        return any(
            existence.can_be(found, *least, may_lack_files=self._may_lack_files) for existence, least in self._each()
        )

    def _each(self) -> Iterator[tuple[Existence, tuple[int, int]]]:
        deletions, puts, removals = self._first
        yield self._existences[deletions], (puts, removals)
        for existence in self._existences[deletions + 1 :]:
            yield existence, (0, 0)

    def __str__(self) -> str:
        return " or ".join(
            f"{each.after(puts, removals)} with more of {each.puts[puts:]} and less of {each.removals[removals:]}"
            for each, (puts, removals) in self._each()
        )
