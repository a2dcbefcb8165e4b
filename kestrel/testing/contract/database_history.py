"""Random batches of a few queues, with repeated batches, restarts and kills, compared with a dict."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from pathlib import Path
from typing import Final

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kestrel.storage.database import QueueChanges, StoredItem
from kestrel.testing.contract.database_backend import DatabaseBackend, OwnedDatabase, item

NAMES: Final = (b"a", b"a\0", b"A", b"\xff")

some_name = st.sampled_from(NAMES)
some_batch = st.dictionaries(some_name, st.integers(0, 5), min_size=1)
"""Names with a kind of change each: 0 deletes the queue, 1 makes it new, any other number changes it."""


class DatabaseHistoryTests(DatabaseBackend):
    """Random histories of one database."""

    def test_random_batches_match_the_model(self, tmp_path: Path) -> None:
        backend = self
        folders = (tmp_path / f"history-{number}" for number in itertools.count())

        class DatabaseHistoryStateMachine(DatabaseMachine):
            """A machine over this test's backend."""

            def __init__(self) -> None:
                super().__init__(OwnedDatabase(backend, next(folders)))

        run_state_machine_as_test(
            DatabaseHistoryStateMachine,
            settings=settings(
                max_examples=self.max_examples,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )


class DatabaseMachine(RuleBasedStateMachine):
    """A state machine of the calls that a storage makes to a healthy database."""

    def __init__(self, owner: OwnedDatabase) -> None:
        super().__init__()
        self.first = self.owner = owner
        self.model: dict[bytes, dict[int, StoredItem]] = {}

    def teardown(self) -> None:
        self.first.end()

    @rule(queues=some_batch, answers_lost=st.integers(0, 2), data=st.data())
    def apply(self, queues: dict[bytes, int], answers_lost: int, data: st.DataObject) -> None:
        batch = self.owner.batch(*(self.change(name, kind, data) for name, kind in queues.items()))
        for _ in range(1 + answers_lost):
            self.owner.wait(self.owner.database.apply(batch))

    def change(self, name: bytes, kind: int, data: st.DataObject) -> QueueChanges:
        """Draw changes of that queue, and apply them to the model."""
        if kind == 0:
            self.model.pop(name, None)
            return self.owner.deletion(name)
        is_new = kind == 1 or name not in self.model
        items = {} if is_new else self.model[name]
        last = 0 if is_new else self.owner.queues[name].last
        gaps = data.draw(st.lists(st.integers(1, 3), max_size=4), "gaps between puts")
        puts = [item(last + behind) for behind in itertools.accumulate(gaps)]
        bounds = sorted(data.draw(st.sets(st.integers(1, last), max_size=4), "bounds")) if last else []
        removed = list(zip(bounds[::2], bounds[1::2], strict=False))
        kept = {place: each for place, each in items.items() if not any(low <= place <= high for low, high in removed)}
        failed = data.draw(st.sets(st.sampled_from(sorted(kept))), "failed") if kept else ()
        errors = {position: kept[position].errors + 1 for position in failed}
        changes = self.owner.changes(name, puts=puts, removed=removed, errors=errors, is_new=is_new)
        kept.update((position, kept[position]._replace(errors=count)) for position, count in errors.items())
        kept.update((put.position, put) for put in puts)
        self.model[name] = kept
        return changes

    @rule(name=some_name, position=st.integers(0, 20), n=st.integers(1, 4), max_bytes=st.integers(0, 6))
    def read(self, name: bytes, position: int, n: int, max_bytes: int) -> None:
        behind = [each for place, each in sorted(self.model.get(name, {}).items()) if place > position][:n]
        sizes = list(itertools.accumulate(len(each.data) for each in behind))
        expected = behind[: max(1, bisect_right(sizes, max_bytes))]
        assert self.owner.read(name, position, n, max_bytes) == expected

    @rule()
    def restart(self) -> None:
        self.owner = self.owner.restarted()

    @rule()
    def kill(self) -> None:
        again = self.owner.killed()
        assert again.found == self.owner.queues
        self.owner.close()
        self.owner = again

    @invariant()
    def each_queue_has_its_items(self) -> None:
        for name in NAMES:
            assert self.owner.read(name) == [each for _, each in sorted(self.model.get(name, {}).items())]
