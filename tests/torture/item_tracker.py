"""Records the puts and deliveries of every item of a torture run, and checks them.

A *destination* must deliver an item once. It is a queue, or a queue together with its `expireToQueue`. An item that is
put to a parent or an alias has many destinations. A second delivery needs a *cause*: the client aborted the read,
disconnected, let it time out, or its confirm was refused or not answered, or the server or its disk failed meanwhile.

All times are in seconds of `time.monotonic`. `Timeline` has the offset of the server's clock.
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
"""State of a put. SENT: the client has no reply, or one that does not say whether the item is stored."""

OPENED, CONFIRMING, CONFIRMED, DENIED = "open", "confirm sent", "confirmed", "not confirmed"
UNANSWERED, ABORTED, DISCONNECTED = "confirm not answered", "aborted", "disconnected"
"""State of a delivery. DENIED: the server replied that it did not confirm the read."""

DONE: Final = (CONFIRMED, UNANSWERED, CONFIRMING)
"""After one of these, an item need not be delivered again."""

_BLOCK_BYTES: Final = 64 * 1024
_NEIGHBOURS: Final = 3
"""Number of items on each side of an item that estimate when it was at the head."""
_GRACE_S: Final = 2.0
"""Effects of a fault may appear so long after its end: a commit had begun, or a queue is being reopened."""

_EARLY_S: Final = 0.005
"""Time that a delayed item may be early: the server rounds times to milliseconds."""

_BUSY_S: Final = 0.05
"""Replies that were received so shortly after each other may have been sent in another order."""


@dataclass(eq=False, repr=False, slots=True)
class Delivery:
    """One delivery of an item to a client."""

    item: Item
    client: str
    queue: str
    requested_s: float
    outcome: str
    timeout_s: float
    last_cut_s: Callable[[], float]
    is_removed_after_reply: bool
    """True if the server replies before it removes the item: in a get that waits, and in every thrift get."""
    was_redelivered: bool = False
    """True if the item was delivered again before the outcome was known."""
    received_s: float = field(init=False)
    outcome_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.received_s = self.outcome_s = time.monotonic()


@dataclass(eq=False, repr=False, slots=True)
class Item:
    """An item that a client has put. An `expiry_s` of 0 is no expiry, and a `delay_ms` of 0 no delay."""

    key: bytes
    target: str
    destinations: Sequence[str]
    size: int
    expiry_s: int
    client: str
    delay_ms: int
    state: str = SENT
    sent_s: float = field(default_factory=lambda: time.monotonic())
    answered_s: float = 0.0
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)

    def moves_to(self, destination: str) -> bool:
        """Return whether the server moves the item to that destination, or within it."""
        return destination == "later" or self.delay_ms > 0


@dataclass
class UnansweredGet:
    """Plain gets without a reply. Up to `count` items of the destination may be lost with them."""

    requested_s: float
    lost_s: float
    count: int


@dataclass
class Timeline:
    """Faults of the server and changes of its clock, with their times."""

    began_s: float = field(default_factory=time.monotonic)
    notes: list[tuple[float, str]] = field(default_factory=list)
    faults: list[tuple[str, float, float]] = field(default_factory=list)
    """(kind, begin, end) of faults that can cause redeliveries, in the order of their ends."""
    active: dict[str, float] = field(default_factory=dict)
    """Kinds of faults that have not ended, and when each began. Replaced at a change, because threads read it."""
    clock: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    """(since, offset): the server's clock is ahead of the real time by `offset` seconds."""

    def note(self, what: str) -> None:
        """Add a line to the histories of the items that are in use now."""
        self.notes.append((time.monotonic(), what))

    def begin(self, kind: str, what: str) -> None:
        """Record that a fault begins now."""
        self.active = {**self.active, kind: time.monotonic()}
        self.note(what)

    def end(self, kind: str) -> None:
        """Record that a fault ends now."""
        self.faults.append((kind, self.active[kind], time.monotonic()))
        self.active = {each: began_s for each, began_s in self.active.items() if each != kind}

    def clock_offsets(self, first_s: float, last_s: float) -> list[float]:
        """Return all offsets that the server's clock had in a period."""
        first = bisect.bisect_right(self.clock, (first_s, float("inf"))) - 1
        return [offset for since, offset in self.clock[first:] if since <= last_s]

    def fault_between(self, first_s: float, last_s: float = float("inf"), but: str = "") -> str | None:
        """Return the kind of a fault in that period that can cause redeliveries, or None."""
        for kind, began_s in self.active.items():
            if began_s <= last_s and kind != but:
                return kind
        for kind, began_s, end_s in reversed(self.faults):
            if end_s + _GRACE_S < first_s:
                break
            if began_s <= last_s and kind != but and end_s + (0 if kind in ("kill", "stop") else _GRACE_S) >= first_s:
                return kind
        return None


def _was_overtaken(delivery: Delivery, other: Delivery) -> bool:
    """Return whether the server may have sent `delivery` before `other`, although it was received a moment later.

    The read of `delivery` had timed out then. On a busy machine, threads do not receive replies in their order.
    """
    may_have_timed_out = 0 < delivery.timeout_s <= other.received_s - delivery.requested_s
    return may_have_timed_out and delivery.received_s - other.received_s < _BUSY_S


class ItemTracker:
    """All items of a run. `failures` has the histories of the items that failed each check."""

    def __init__(self, seed: int, timeline: Timeline) -> None:
        self.timeline = timeline
        self.items: dict[bytes, Item] = {}
        self.put_order: dict[str, list[Item]] = defaultdict(list)
        """Items of each target, in the order of their puts."""
        self.failures: dict[str, list[str]] = defaultdict(list)
        self.causes: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.queued: Counter[str] = Counter()
        """Approximate number of items in each destination."""
        self._unanswered_gets: dict[str, list[UnansweredGet]] = defaultdict(list)
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        block = random.Random(f"data {seed}").randbytes(2 * _BLOCK_BYTES)
        self._blocks = block, bytes(33 + byte % 90 for byte in block)
        self._ids: set[int] = set()

    def fail(self, check: str, history: str) -> None:
        """Record a failure of that check."""
        self.failures[check].append(history)

    # Puts.

    def new_item(
        self, target: str, destinations: Sequence[str], size: int, expiry_s: int, client: str, delay_ms: int = 0
    ) -> Item:
        """Return a new item that is about to be put."""
        with self._lock:
            self._numbers[client] += 1
            key = f"{target}/{client}/{self._numbers[client]}".encode()
            item = self.items[key] = Item(key, target, destinations, size, expiry_s, client, delay_ms)
            self.put_order[target].append(item)
            self.counts["put"] += 1
        return item

    def data(self, item: Item) -> bytes:
        """Return the data of an item: its key, and bytes that depend on it, printable for the text protocol."""
        start = zlib.crc32(item.key) % _BLOCK_BYTES
        return item.key + b" " + self._blocks[item.target in ("jobs", "line", "soon")][start : start + item.size]

    def set_put_result(self, items: Iterable[Item], state: str) -> None:
        """Record the server's reply to puts."""
        now = time.monotonic()
        with self._lock:
            for item in items:
                item.state, item.answered_s = state, now
                self.counts[state] += 1
                if state == STORED:
                    self.queued.update(item.destinations)
                elif state == REFUSED and item.deliveries:
                    self.fail("refused", self.history(item))

    # Deliveries.

    def add_delivery(
        self,
        destination: str,
        queue: str,
        data: bytes,
        client: str,
        requested_s: float,
        outcome: str,
        last_cut_s: Callable[[], float],
        *,
        timeout_s: float = 0.0,
        read_id: int = 0,
        is_removed_after_reply: bool = False,
    ) -> Delivery | None:
        """Record a delivery. Return None if the data are not those of an item of this destination."""
        with self._lock:
            key = data.partition(b" ")[0]
            item = self.items.get(key)
            self.counts["delivered"] += 1
            if item is None or destination not in item.destinations or data != self.data(item):
                self.fail("contents", f"{client} received {len(data)} bytes {data[:60]!r} from {queue}")
                return None
            if read_id:
                if read_id in self._ids:
                    self.fail("ids", f"{client}: open read id {read_id} was used twice")
                self._ids.add(read_id)
            earlier = item.deliveries.setdefault(destination, [])
            delivery = Delivery(
                item, client, queue, requested_s, outcome, timeout_s, last_cut_s, is_removed_after_reply
            )
            earlier.append(delivery)
            if item.state == REFUSED:
                self.fail("refused", self.history(item))
            if len(earlier) > 1:
                if _was_overtaken(delivery, earlier[-2]):
                    earlier[-2:] = [delivery, earlier[-2]]
                self._count_redelivery(item, destination, *earlier[-2:])
            self._check_expiry(item, delivery)
            if item.delay_ms and not self._may_have_passed(item, item.delay_ms / 1000 - _EARLY_S):
                self.fail("early", self.history(item))
            if outcome == CONFIRMED:
                self._confirmed(delivery)
            return delivery

    def _confirmed(self, delivery: Delivery) -> None:
        self.counts["confirmed"] += 1
        for destination, deliveries in delivery.item.deliveries.items():
            if delivery is deliveries[-1]:
                self.queued[destination] -= 1

    def _count_redelivery(self, item: Item, destination: str, before: Delivery, delivery: Delivery) -> None:
        cause = self._cause(destination, before, delivery)
        self.counts["redelivered"] += 1
        if cause is None:
            check = "confirmed" if before.outcome == CONFIRMED else "duplicates"
            self.fail(check, self.history(item))
        else:
            self.causes[cause] += 1
        before.was_redelivered = not item.moves_to(destination)  # an item that is moved twice may be open twice

    def _cause(self, destination: str, before: Delivery, delivery: Delivery) -> str | None:
        fault = self.timeline.fault_between(before.requested_s)
        # A crash or failure between the put and the confirm of a move repeats the move.
        moved = before.item.moves_to(destination) and self.timeline.fault_between(before.item.sent_s, but="stop")
        if before.outcome == CONFIRMED:
            last_s = before.received_s + _GRACE_S
            if before.is_removed_after_reply and self.timeline.fault_between(before.requested_s, last_s, but="stop"):
                return "server failed between reply and removal"
            return "moved again" if moved else None
        if before.outcome in (ABORTED, DISCONNECTED, DENIED, UNANSWERED):
            return before.outcome
        if before.timeout_s and delivery.received_s - before.requested_s >= before.timeout_s:
            return "timed out"
        if fault is not None:
            return fault
        if not before.timeout_s and before.last_cut_s() >= before.requested_s:
            return "connection cut"
        return "moved again" if moved else None

    def _check_expiry(self, item: Item, delivery: Delivery) -> None:
        if item.expiry_s and item.answered_s and delivery.queue != "late":
            requested_s, received_s = delivery.requested_s, delivery.received_s
            earliest = requested_s + min(self.timeline.clock_offsets(requested_s, received_s))
            latest = item.answered_s + max(self.timeline.clock_offsets(item.sent_s, item.answered_s))
            if earliest > latest + item.expiry_s + 1:
                self.fail("expired", self.history(item))

    def may_have_expired(self, item: Item) -> bool:
        """Return whether the server's clock may have passed the item's expiry since it was put."""
        return item.expiry_s > 0 and self._may_have_passed(item, item.expiry_s - 1)

    def _may_have_passed(self, item: Item, seconds: float) -> bool:
        """Return whether the server's clock may have reached that time after the put."""
        began = item.sent_s + min(self.timeline.clock_offsets(item.sent_s, (item.answered_s or item.sent_s) + 1))
        marks = self.timeline.clock[:]
        ends = [since for since, _ in marks[1:]] + [time.monotonic()]
        return any(
            end + offset >= began + seconds for (_, offset), end in zip(marks, ends, strict=True) if end >= item.sent_s
        )

    def set_outcome(self, deliveries: Iterable[Delivery], outcome: str) -> None:
        """Record the outcome of deliveries. CONFIRMING is recorded before the confirm is sent."""
        now = time.monotonic()
        with self._lock:
            for delivery in deliveries:
                if outcome == CONFIRMED and delivery.was_redelivered:
                    self.fail("confirmed", self.history(delivery.item))
                delivery.outcome, delivery.outcome_s = outcome, now
                if outcome == CONFIRMED:
                    self._confirmed(delivery)

    def connection_lost(self, deliveries: Iterable[Delivery]) -> None:
        """Record that the connection of these deliveries has ended."""
        for delivery in deliveries:
            if delivery.outcome == CONFIRMING:
                self.set_outcome([delivery], UNANSWERED)
            elif delivery.outcome == OPENED and not delivery.timeout_s:
                self.set_outcome([delivery], DISCONNECTED)

    def add_unanswered_get(self, destination: str, requested_s: float, count: int) -> None:
        """Record plain gets without a reply: `count` gets of one item, or one get of `count` items."""
        with self._lock:
            self._unanswered_gets[destination].append(UnansweredGet(requested_s, time.monotonic(), count))

    # The end.

    def unexplained(self, destination: str, lost: list[Item]) -> list[Item]:
        """Return the lost items that no unanswered get can have taken.

        A get takes the head. An item was the head after it was put, about when or after the items before it were
        delivered, and about when or before those behind it were. Items that were put at the same time can be either. An
        item that was returned was the head again.
        """
        stored = [
            (item, deliveries[0].received_s)
            for item in self.items.values()
            if item.state == STORED and (deliveries := item.deliveries.get(destination))
        ]
        answered = sorted((item.answered_s, received_s) for item, received_s in stored)
        sent = sorted((item.sent_s, received_s) for item, received_s in stored)
        gets = [UnansweredGet(get.requested_s, get.lost_s, get.count) for get in self._unanswered_gets[destination]]
        left = []
        for item in lost:
            first = bisect.bisect_left(answered, (item.sent_s, 0.0))
            behind = bisect.bisect_left(sent, (item.answered_s or time.monotonic(), 0.0))
            before_s = [received_s for _, received_s in answered[max(0, first - _NEIGHBOURS) : first]]
            behind_s = [received_s for _, received_s in sent[behind : behind + _NEIGHBOURS]]
            first_s = max(item.sent_s, min(before_s, default=0.0) - _GRACE_S)
            returned_s = [delivery.outcome_s for delivery in item.deliveries.get(destination, ())]
            last_s = max(behind_s + returned_s[-1:], default=time.monotonic()) + _GRACE_S
            for get in gets:
                if get.count and get.requested_s <= last_s and get.lost_s >= first_s:
                    get.count -= 1
                    break
            else:
                left.append(item)
        return left

    def lost_items(self) -> dict[str, list[Item]]:
        """Return the items of each destination that were stored, and neither finished nor possibly expired."""
        lost: dict[str, list[Item]] = defaultdict(list)
        for item in self.items.values():
            for destination in item.destinations:
                deliveries = item.deliveries.get(destination, [])
                is_done = any(delivery.outcome in DONE for delivery in deliveries)
                # A delivery proves that the item was stored, even if its put has no reply.
                was_stored = item.state == STORED or bool(deliveries)
                if was_stored and not is_done and (destination == "later" or not self.may_have_expired(item)):
                    lost[destination].append(item)
        return lost

    def history(self, item: Item) -> str:
        """Return the history of an item for a person, with the faults of the server meanwhile."""
        put = f"{item.client} puts it to {item.target}, {item.size} bytes, expiry {item.expiry_s} s"
        if item.delay_ms:
            put += f", delay {item.delay_ms} ms"
        events = [(item.sent_s, put)]
        if item.answered_s:
            events.append((item.answered_s, f"the reply: {item.state}"))
        for destination, deliveries in item.deliveries.items():
            for each in deliveries:
                timeout = f" for {each.timeout_s} s" if each.timeout_s else ""
                requested_s = each.requested_s - self.timeline.began_s
                what = f"{each.client} receives it from {each.queue}{timeout}, requested at {requested_s:.3f}"
                events.append((each.received_s, what))
                events.append((each.outcome_s, f"{each.client}: {each.outcome} ({destination})"))
        first, last = events[0][0] - 1, max(when for when, _ in events) + 3
        events += [(when, f"    {what}") for when, what in self.timeline.notes if first <= when <= last]
        lines = [f"    {when - self.timeline.began_s:9.3f} s  {what}" for when, what in sorted(events)]
        return "\n".join([f"item {item.key.decode()}", *lines])
