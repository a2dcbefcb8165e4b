"""What a queue was, record by record: what a start may find in it after a death, and what it must.

Items are numbers, each put once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from kestrel.item import Item

ADD_MS: Final = 1_700_000_000_000


def item_of(number: int) -> tuple[bytes, int, int]:
    """The data (0 to 100 bytes; the second item's are none), add time and expiry of the item of that number."""
    data = (b"%d." % number * 100)[: (37 * number + 27) % 101]
    return data, ADD_MS + number, 0 if number % 3 else ADD_MS + 10**9


def is_short(number: int) -> bool:
    """Whether the item of that number has little data or none."""
    return len(item_of(number)[0]) < 10


def is_put_off(add_ms: int) -> bool:
    """Whether an item of that add time that is continued with is stored 1 ms later (`IContinue`)."""
    return add_ms % 256 == 7


def number_of(item: Item) -> int:
    """The number of an item, which must be as it was put."""
    number = item.add_ms - ADD_MS
    seen = item.data, item.add_ms, item.expiry_ms
    assert seen == item_of(number), f"{seen} was never put"
    return number


State: TypeAlias = tuple[int, ...]
"""What a start finds: the numbers of the items, in order."""


class Promise(ABC):
    """What a start may find; as text, in short."""

    @abstractmethod
    def admits(self, found: State) -> bool:
        """Whether a start may find these."""


class History(ABC):
    """What a queue was after each of its records, as a restart would show it; and what of that was promised.

    A *moment* is a place in it. A later moment is greater.
    """

    def __init__(self, items: State = ()) -> None:
        self.items = list(items)
        """Those that are not open, in order."""
        self.opened: dict[int, int] = {}
        """The open reads: the number of each by its xid."""

    # What happens.

    def put(self, number: int) -> None:
        """An item more."""
        self.items.append(number)
        self._put(number)

    def take(self, number: int, xid: int) -> None:
        """The head was taken; without an xid for good."""
        assert [number] == self.items[:1], "another item than the head was taken"
        del self.items[0]
        if xid:
            assert xid not in self.opened
            self.opened[xid] = number
            self._moved()
        else:
            self._removed(number)

    def confirm(self, xid: int) -> None:
        """An open read has ended for good."""
        self._removed(self.opened.pop(xid))

    def continue_(self, xid: int, number: int) -> None:
        """An open read has ended, and in the same moment there was an item more."""
        del self.opened[xid]
        self.items.append(number)
        self._moved()

    def put_back(self, xid: int) -> None:
        """An open read is back at the head."""
        self.items.insert(0, self.opened.pop(xid))
        self._moved()

    def clear(self) -> None:
        """All but the open reads were dropped, one after the other."""
        while self.items:
            self._removed(self.items.pop(0))

    def delete(self) -> None:
        """The queue is gone; what is put from now on is another's."""
        self.items.clear()
        self.opened.clear()
        self._deleted()

    @abstractmethod
    def _put(self, number: int) -> None: ...

    @abstractmethod
    def _removed(self, number: int) -> None: ...

    @abstractmethod
    def _moved(self) -> None: ...

    @abstractmethod
    def _deleted(self) -> None: ...

    # What is promised.

    @abstractmethod
    def commit(self) -> object:
        """What happened so far is a batch, which is to be made safe: the moment that this is."""

    @abstractmethod
    def acknowledge(self, moment: object) -> None:
        """The commit that was made at that moment is safe. What is later may be lost."""

    @abstractmethod
    def last_acknowledged(self) -> object:
        """The moment of the last commit that was acknowledged."""

    @abstractmethod
    def sync(self, moment: object) -> None:
        """What was acknowledged at that moment is on the medium by now, since its period is over."""

    @abstractmethod
    def promise(self, sync_journal_ms: int | None, *, has_machine_died: bool) -> Promise:
        """What a start may find if there is a crash now.

        A queue whose deletion is under way may be there again as it once was, since it was made.
        """

    @abstractmethod
    def on_the_way(self) -> list[State]:
        """What a start finds after each record of the batch that is written now, the first being what it finds
        after none of them."""


class OneFile(History):
    """Of a queue all of whose records stand in one file, in the order in which they were made.

    A restart brings the open reads before the rest.
    """

    def __init__(self, items: State = ()) -> None:
        super().__init__(items)
        self._states: list[State] = [items]
        self._acknowledged = 0
        self._synced = 0
        self._born = 0
        self._deletion: int | None = None

    def _put(self, number: int) -> None:
        self._moved()

    def _removed(self, number: int) -> None:
        self._moved()

    def _moved(self) -> None:
        self._states.append(tuple(self.opened[xid] for xid in sorted(self.opened)) + tuple(self.items))

    def _deleted(self) -> None:
        self._moved()
        self._deletion = self.commit()

    def commit(self) -> int:
        """The place of the present state."""
        return len(self._states) - 1

    def acknowledge(self, moment: object) -> None:
        """The commit that was made then is safe."""
        assert isinstance(moment, int)
        self._acknowledged = moment
        if self._deletion is not None and moment >= self._deletion:
            self._born, self._deletion = self._deletion, None

    def last_acknowledged(self) -> int:
        """The place of that state."""
        return self._acknowledged

    def sync(self, moment: object) -> None:
        """What was acknowledged then is synced."""
        assert isinstance(moment, int)
        self._synced = moment

    def promise(self, sync_journal_ms: int | None, *, has_machine_died: bool) -> Promise:
        """One of the states since the one that was promised last."""
        first = self._acknowledged if self._deletion is None else self._born
        if has_machine_died and sync_journal_ms != 0:
            first = 0 if sync_journal_ms is None else min(first, self._synced)
        return OneOf(self._states[first:])

    def on_the_way(self) -> list[State]:
        """The states since then."""
        return self._states[self._acknowledged :]


class OneOf(Promise):
    """One of these states."""

    def __init__(self, states: Sequence[State]) -> None:
        self._states = states

    def admits(self, found: State) -> bool:
        """Whether it is one of them."""
        return found in self._states

    def __str__(self) -> str:
        states = self._states
        shown = [*map(str, states)] if len(states) < 8 else [*map(str, states[:4]), "...", *map(str, states[-3:])]
        return f"one of {' '.join(shown)}"


class Moment(NamedTuple):
    """How often the queue was deleted before, and how many of its items were put and removed since."""

    deletions: int
    puts: int
    removals: int


class Existence:
    """A queue from its making to its deletion: which items were put to it, and which have left it, in order."""

    def __init__(self, items: State = ()) -> None:
        self.puts = list(items)
        self.removals: list[int] = []

    def after(self, puts: int, removals: int) -> State:
        """What is in it after so many of each."""
        gone = {*self.removals[:removals]}
        return tuple(number for number in self.puts[:puts] if number not in gone)

    def can_be(self, found: State, puts: int, removals: int, *, may_lack_files: bool) -> bool:
        """Whether it is that after at least so many of each.

        With `may_lack_files` any may be gone that have been removed, though that is not written.
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
    """Of a queue whose items stand in one file, and what has become of them in another.

    Of each a crash may leave as much as was written or as little as was promised. A restart brings all items in the
    order in which they were put; what is open or was put back stands in no file. A file whose items have all been
    removed is erased, or never synced, and a power failure may leave that and not the removals.
    """

    def __init__(self, items: State = ()) -> None:
        super().__init__(items)
        self._existences = [Existence(items)]
        self._beginning = self._acknowledged = self._synced = self._born = Moment(0, len(items), 0)
        self._deletion: Moment | None = None

    def _put(self, number: int) -> None:
        self._existences[-1].puts.append(number)

    def _removed(self, number: int) -> None:
        self._existences[-1].removals.append(number)

    def _moved(self) -> None:
        pass

    def _deleted(self) -> None:
        self._existences.append(Existence())
        self._deletion = self.commit()

    def commit(self) -> Moment:
        """What was done so far."""
        last = self._existences[-1]
        return Moment(len(self._existences) - 1, len(last.puts), len(last.removals))

    def acknowledge(self, moment: object) -> None:
        """The commit that was made then is safe."""
        assert isinstance(moment, Moment)
        self._acknowledged = moment
        if self._deletion is not None and moment >= self._deletion:
            self._born, self._deletion = self._deletion, None

    def last_acknowledged(self) -> Moment:
        """What had been done by then."""
        return self._acknowledged

    def sync(self, moment: object) -> None:
        """What was acknowledged then is synced."""
        assert isinstance(moment, Moment)
        self._synced = moment

    def promise(self, sync_journal_ms: int | None, *, has_machine_died: bool) -> Promise:
        """As many of the puts and as many of the removals as were promised last, or more of either."""
        first = self._acknowledged if self._deletion is None else self._born
        if has_machine_died and sync_journal_ms != 0:
            first = self._beginning if sync_journal_ms is None else min(first, self._synced)
        return AtLeast(self._existences, first, may_lack_files=has_machine_died and sync_journal_ms != 0)

    def on_the_way(self) -> list[State]:
        """The items are written first."""
        deletions, puts, removals = self._acknowledged
        last = self._existences[-1]
        assert deletions == len(self._existences) - 1, "the batch deletes the queue"
        states = [last.after(each, removals) for each in range(puts, len(last.puts) + 1)]
        removed = range(removals + 1, len(last.removals) + 1)
        return states + [last.after(len(last.puts), each) for each in removed]


class AtLeast(Promise):
    """What was done by a moment, and as much as you like of what was done since."""

    def __init__(self, existences: Sequence[Existence], first: Moment, *, may_lack_files: bool) -> None:
        self._existences = existences
        self._first = first
        self._may_lack_files = may_lack_files

    def admits(self, found: State) -> bool:
        """Whether it can have come to that."""
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
