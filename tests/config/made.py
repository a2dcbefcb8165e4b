"""Hypothesis strategies for settings of queues."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kestrel.config.model import QueueSettings
from kestrel.config.setting import MAX_COUNT
from kestrel.config.units import MAX_AMOUNT
from kestrel.errors import BadQueueName
from kestrel.names import check_queue_name


def is_queue_name(name: bytes) -> bool:
    """Whether a queue can have that name."""
    try:
        check_queue_name(name)
    except BadQueueName:
        return False
    return True


# A comma would end a name in a list that is shown, and a line end the line.
texts = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters=","), min_size=1, max_size=40)
# In a file "none" is no name.
names = texts.filter(lambda text: text != "none").map(str.encode)
queue_names = names.filter(is_queue_name)

_counts = st.none() | st.integers(1, MAX_COUNT)
_sizes = st.integers(1, MAX_AMOUNT)
_durations_ms = st.none() | st.integers(1, MAX_AMOUNT)
_queues = st.none() | queue_names
_identities = st.none() | st.lists(names, max_size=3).map(tuple)

QUEUE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "max_items": _counts,
    "max_size_bytes": st.none() | _sizes,
    "max_item_size_bytes": st.none() | _sizes,
    "max_age_ms": _durations_ms,
    "default_journal_size_bytes": _sizes,
    "max_memory_size_bytes": _sizes,
    "max_journal_size_bytes": _sizes,
    "min_journal_compact_delay_ms": _durations_ms,
    "discard_old_when_full": st.booleans(),
    "keep_journal": st.booleans(),
    "sync_journal_ms": _durations_ms | st.just(0),
    "expire_to_queue": _queues,
    "max_expire_sweep": _counts,
    "max_redeliveries": _counts,
    "error_queue": _queues,
    "fanout_only": st.booleans(),
    "max_queue_age_ms": _durations_ms,
    "enable_trace": st.booleans(),
    "disable_aggressive_rewrites": st.booleans(),
    "open_transaction_timeout_ms": _durations_ms,
    "white_list_client_id_for_enqueue": _identities,
    "white_list_client_id_for_dequeue": _identities,
}
"""Strategies for the value of each field of `QueueSettings`."""

queue_settings = st.builds(QueueSettings, **QUEUE_VALUES)
queue_overrides = st.fixed_dictionaries({}, optional=QUEUE_VALUES)
"""Some fields, each with one of its values."""
