"""The account of every item of a torture: who put it, what the server said, who was given it, and what became of that.

A *place* is what has to bring an item once: a queue; or a queue together with the one that its items expire into. An
item put to a parent or to an alias is in many places. What comes again needs a *reason*: the client gave it back, hung
up, or let its time go by, the answer to its confirm was lost or said no, the server was killed or stopped, or its disk
failed meanwhile.

All times are seconds of time.monotonic; the server's time of day is ours and what `Times` says.
"""

from __future__ import annotations

import bisect
import random
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

SENT, STORED, REFUSED = "sent", "stored", "refused"
"""What is known of a put. SENT: it has no answer, or one that leaves open where it is."""

HELD, CONFIRMING, CONFIRMED, DENIED = "held", "confirm sent", "confirmed", "denied"
DOUBTFUL, ABORTED, HUNG_UP = "no answer to its confirm", "aborted", "hung up"
"""What is known of a delivery. DENIED: the server did not confirm it, and said so."""

DONE: Final = (CONFIRMED, DOUBTFUL, CONFIRMING)
"""After these an item need not come again."""

SHOWN: Final = 5
_BLOCK: Final = 64 * 1024
_BESIDE: Final = 3
"""So many items on each side of one say when it stood at the head."""
_LATE_S: Final = 2.0
"""A fault may show that much after its end: in a commit that had begun, in a queue that is opened anew."""


class Delivery:
    """An item that a client was given."""

    __slots__ = (
        "asked_s",
        "cut_s",
        "fate",
        "fate_s",
        "got_s",
        "hold_s",
        "is_overtaken",
        "is_removed_later",
        "item",
        "where",
        "who",
    )

    def __init__(
        self, item: Item, who: str, where: str, asked_s: float, fate: str, hold_s: float, cut_s: Callable[[], float]
    ) -> None:
        self.item, self.who, self.where = item, who, where
        self.asked_s, self.hold_s, self.cut_s = asked_s, hold_s, cut_s
        self.got_s = self.fate_s = time.monotonic()
        self.fate = fate
        self.is_overtaken = False
        """It came again before this was over."""
        self.is_removed_later = False
        """Its answer does not wait for the removal: as with a get that waits, and with every one of thrift."""


class Item:
    """One that was put. `expiry_s` 0 is never."""

    __slots__ = ("answered_s", "deliveries", "expiry_s", "key", "places", "sent_s", "size", "state", "target", "who")

    def __init__(self, key: bytes, target: str, places: Sequence[str], size: int, expiry_s: int, who: str) -> None:
        self.key, self.target, self.places = key, target, places
        self.size, self.expiry_s, self.who = size, expiry_s, who
        self.state = SENT
        self.sent_s = time.monotonic()
        self.answered_s = 0.0
        self.deliveries: dict[str, list[Delivery]] = {}


@dataclass
class LostGet:
    """Gets that take for good and that had no answer: so many items of the place may have gone with them."""

    asked_s: float
    lost_s: float
    count: int


@dataclass
class Times:
    """What was done to the server, and when. A fault that goes on has no end yet."""

    began_s: float = field(default_factory=time.monotonic)
    told: list[tuple[float, str]] = field(default_factory=list)
    faults: list[tuple[str, float, float]] = field(default_factory=list)
    """What can bring items back: the kind, when it began and when it was over. They are in the order of their ends."""
    going_on: dict[str, float] = field(default_factory=dict)
    """Kinds that are not over, and when they began."""
    clock: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    """(since when, how far ahead of ours) the server's time of day is."""

    def tell(self, what: str) -> None:
        """It happens now."""
        self.told.append((time.monotonic(), what))

    def begins(self, kind: str, what: str) -> None:
        """It happens from now on."""
        self.going_on[kind] = time.monotonic()
        self.tell(what)

    def is_over(self, kind: str) -> None:
        """No longer."""
        self.faults.append((kind, self.going_on[kind], time.monotonic()))
        del self.going_on[kind]

    def ahead(self, first_s: float, last_s: float) -> list[float]:
        """How far ahead the clock was in that time: all values that it had."""
        first = bisect.bisect_right(self.clock, (first_s, float("inf"))) - 1
        return [ahead for since, ahead in self.clock[first:] if since <= last_s]

    def reason(self, first_s: float, last_s: float = float("inf"), but: str = "") -> str | None:
        """What happened to the server in that time that brings open reads back."""
        for kind, began_s in tuple(self.going_on.items()):
            if began_s <= last_s and kind != but:
                return kind
        for kind, began_s, end_s in reversed(self.faults):
            if end_s + _LATE_S < first_s:
                break
            if began_s <= last_s and kind != but and end_s + (0 if kind in ("kill", "stop") else _LATE_S) >= first_s:
                return kind
        return None


class Books:
    """All accounts. `wrong` has, for each thing that is checked, the stories of what broke it."""

    def __init__(self, seed: int, times: Times) -> None:
        self.times = times
        self.items: dict[bytes, Item] = {}
        self.order: dict[str, list[Item]] = defaultdict(list)
        """Of each target: what was put to it, as it was sent."""
        self.wrong: dict[str, list[str]] = defaultdict(list)
        self.reasons: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        """About how many items are in each place."""
        self._lost_gets: dict[str, list[LostGet]] = defaultdict(list)
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        block = random.Random(f"data {seed}").randbytes(2 * _BLOCK)
        self._blocks = block, bytes(33 + byte % 90 for byte in block)
        self._ids: set[int] = set()

    def fails(self, check: str, story: str) -> None:
        """That check has failed."""
        self.wrong[check].append(story)

    # Puts.

    def new(self, target: str, places: Sequence[str], size: int, expiry_s: int, who: str) -> Item:
        """An item that is about to be put."""
        with self._lock:
            self._numbers[who] += 1
            key = f"{target}/{who}/{self._numbers[who]}".encode()
            item = self.items[key] = Item(key, target, places, size, expiry_s, who)
            self.order[target].append(item)
            self.counts["put"] += 1
        return item

    def data(self, item: Item) -> bytes:
        """Its bytes: its key, and some that depend on it. They have no control characters where text may carry them."""
        start = zlib.crc32(item.key) % _BLOCK
        return item.key + b" " + self._blocks[item.target in ("jobs", "line")][start : start + item.size]

    def answered(self, items: Iterable[Item], state: str) -> None:
        """The server's answer to the puts."""
        now = time.monotonic()
        with self._lock:
            for item in items:
                item.state, item.answered_s = state, now
                self.counts[state] += 1
                if state == STORED:
                    self.waiting.update(item.places)
                elif state == REFUSED and item.deliveries:
                    self.fails("refused", self.story(item))

    # Deliveries.

    def delivered(
        self,
        place: str,
        where: str,
        data: bytes,
        who: str,
        asked_s: float,
        fate: str,
        cut_s: Callable[[], float],
        *,
        hold_s: float = 0.0,
        read_id: int = 0,
        is_removed_later: bool = False,
    ) -> Delivery | None:
        """A client was given that. None if nobody has ever put it."""
        with self._lock:
            key = data.partition(b" ")[0]
            item = self.items.get(key)
            self.counts["delivered"] += 1
            if item is None or place not in item.places or data != self.data(item):
                self.fails("bytes", f"{who} was given {len(data)} bytes {data[:60]!r} from {where}")
                return None
            if read_id:
                if read_id in self._ids:
                    self.fails("ids", f"{who}: the id {read_id} came twice")
                self._ids.add(read_id)
            earlier = item.deliveries.setdefault(place, [])
            delivery = Delivery(item, who, where, asked_s, fate, hold_s, cut_s)
            delivery.is_removed_later = is_removed_later
            earlier.append(delivery)
            if item.state == REFUSED:
                self.fails("refused", self.story(item))
            if len(earlier) > 1:
                self._again(item, place, earlier[-2], delivery)
            self._look_at_expiry(item, delivery)
            if fate == CONFIRMED:
                self._confirmed(delivery)
            return delivery

    def _confirmed(self, delivery: Delivery) -> None:
        self.counts["confirmed"] += 1
        for place, deliveries in delivery.item.deliveries.items():
            if delivery is deliveries[-1]:
                self.waiting[place] -= 1

    def _again(self, item: Item, place: str, before: Delivery, delivery: Delivery) -> None:
        reason = self._reason(place, before, delivery)
        self.counts["again"] += 1
        if reason is None:
            check = "after confirm" if before.fate == CONFIRMED else "without a reason"
            self.fails(check, self.story(item))
        else:
            self.reasons[reason] += 1
        before.is_overtaken = place != "later"  # two of an item that was moved again may be about at once

    def _reason(self, place: str, before: Delivery, delivery: Delivery) -> str | None:
        fault = self.times.reason(before.asked_s)
        # A move that a crash or a failure cut off between its put and its confirm is done again.
        moved = place == "later" and self.times.reason(before.item.sent_s, but="stop")
        if before.fate == CONFIRMED:
            if before.is_removed_later and self.times.reason(before.asked_s, before.got_s + _LATE_S, but="stop"):
                return "answered before it was removed"
            return "moved again" if moved else None
        if before.fate in (ABORTED, HUNG_UP, DENIED, DOUBTFUL):
            return before.fate
        if before.hold_s and delivery.got_s - before.asked_s >= before.hold_s:
            return "time over"
        if fault is not None:
            return fault
        if not before.hold_s and before.cut_s() >= before.asked_s:
            return "connection cut"
        return "moved again" if moved else None

    def _look_at_expiry(self, item: Item, delivery: Delivery) -> None:
        if item.expiry_s and item.answered_s and delivery.where != "late":
            earliest = delivery.asked_s + min(self.times.ahead(delivery.asked_s, delivery.got_s))
            latest = item.answered_s + max(self.times.ahead(item.sent_s, item.answered_s))
            if earliest > latest + item.expiry_s + 1:
                self.fails("expired", self.story(item))

    def may_have_expired(self, item: Item) -> bool:
        """Whether the server's clock has ever been beyond the item's time since it was put."""
        if not item.expiry_s:
            return False
        began = item.sent_s + min(self.times.ahead(item.sent_s, (item.answered_s or item.sent_s) + 1))
        marks = [(since, ahead) for since, ahead in self.times.clock]
        ends = [since for since, _ in marks[1:]] + [time.monotonic()]
        return any(
            end + ahead >= began + item.expiry_s - 1
            for (_, ahead), end in zip(marks, ends, strict=True)
            if end >= item.sent_s
        )

    def settle(self, deliveries: Iterable[Delivery], fate: str) -> None:
        """That became of them, or is about to. A confirm is CONFIRMING before it is sent."""
        now = time.monotonic()
        with self._lock:
            for delivery in deliveries:
                if fate == CONFIRMED and delivery.is_overtaken:
                    self.fails("after confirm", self.story(delivery.item))
                delivery.fate, delivery.fate_s = fate, now
                if fate == CONFIRMED:
                    self._confirmed(delivery)

    def connection_lost(self, deliveries: Iterable[Delivery]) -> None:
        """The connection that held these is no more."""
        for delivery in deliveries:
            if delivery.fate == CONFIRMING:
                self.settle([delivery], DOUBTFUL)
            elif delivery.fate == HELD and not delivery.hold_s:
                self.settle([delivery], HUNG_UP)

    def lost_get(self, place: str, asked_s: float, count: int) -> None:
        """Gets of one item each, or one get of so many, that take for good, had no answer."""
        with self._lock:
            self._lost_gets[place].append(LostGet(asked_s, time.monotonic(), count))

    # The end.

    def without_a_get(self, place: str, lost: list[Item]) -> list[Item]:
        """Those of the lost items with which no lost answer can have gone.

        A get takes the head: what stood beside the item in the queue was given out about when it was asked.
        """
        marks = sorted(
            (item.answered_s, deliveries[0].got_s)
            for item in self.items.values()
            if item.state == STORED and (deliveries := item.deliveries.get(place))
        )
        gets = [LostGet(get.asked_s, get.lost_s, get.count) for get in self._lost_gets[place]]
        left = []
        for item in lost:
            beside = bisect.bisect_left(marks, (item.answered_s or item.sent_s, 0.0))
            given_s = [got_s for _, got_s in marks[max(0, beside - _BESIDE) : beside + _BESIDE]]
            first_s, last_s = min(given_s, default=0.0) - _LATE_S, max(given_s, default=time.monotonic()) + _LATE_S
            for get in gets:
                if get.count and get.asked_s <= last_s and get.lost_s >= first_s:
                    get.count -= 1
                    break
            else:
                left.append(item)
        return left

    def lost(self) -> dict[str, list[Item]]:
        """Of each place, the items that were acknowledged, and are neither done with nor came again."""
        lost: dict[str, list[Item]] = defaultdict(list)
        for item in self.items.values():
            for place in item.places:
                deliveries = item.deliveries.get(place, [])
                is_done = any(delivery.fate in DONE for delivery in deliveries)
                # Whoever was given it has proved that it was stored, unless it was not to be.
                was_there = item.state == STORED or bool(deliveries)
                if was_there and not is_done and (place == "later" or not self.may_have_expired(item)):
                    lost[place].append(item)
        return lost

    def story(self, item: Item) -> str:
        """All that is known of the item, with what happened to the server meanwhile, for a person."""
        events = [
            (item.sent_s, f"{item.who} puts it to {item.target}, {item.size} bytes, expiry {item.expiry_s} s"),
        ]
        if item.answered_s:
            events.append((item.answered_s, f"the answer: {item.state}"))
        for place, deliveries in item.deliveries.items():
            for each in deliveries:
                hold = f" for {each.hold_s} s" if each.hold_s else ""
                asked_s = each.asked_s - self.times.began_s
                events.append((each.got_s, f"{each.who} has it from {each.where}{hold}, asked at {asked_s:.3f}"))
                events.append((each.fate_s, f"{each.who}: {each.fate} ({place})"))
        first, last = events[0][0] - 1, max(when for when, _ in events) + 3
        events += [(when, f"    {what}") for when, what in self.times.told if first <= when <= last]
        lines = [f"    {when - self.times.began_s:9.3f} s  {what}" for when, what in sorted(events)]
        return "\n".join([f"item {item.key.decode()}", *lines])
