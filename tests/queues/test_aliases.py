"""Aliases: the queues that they lead to, their counters, and what survives a reload."""

from __future__ import annotations

from kestrel.config.model import AliasSettings, Config
from kestrel.config.resolved import ResolvedConfig
from kestrel.queues.routing import rebuild_aliases


def configured(**aliases: list[str]) -> ResolvedConfig:
    settings = {
        name.encode(): AliasSettings(name=name.encode(), destination_queues=tuple(each.encode() for each in to))
        for name, to in aliases.items()
    }
    return ResolvedConfig(Config(aliases=settings))


def test_alias_has_destinations_and_the_queues_they_lead_to() -> None:
    aliases = rebuild_aliases({}, configured(all=["both", "c", "a"], both=["a", "b"]))
    assert list(aliases) == [b"all", b"both"]
    assert aliases[b"all"].destinations == (b"both", b"c", b"a")
    assert aliases[b"all"].queues == (b"a", b"b", b"c"), "each queue once"
    assert aliases[b"both"].queues == (b"a", b"b")


def test_existing_aliases_keep_counting_after_reload() -> None:
    before = rebuild_aliases({}, configured(stays=["a"], changes=["a"], goes=["a"]))
    for alias in before.values():
        alias.count(7)
    after = rebuild_aliases(before, configured(stays=["a"], changes=["b", "c"], comes=["goes"]))
    assert {name: (alias.put_items, alias.put_bytes) for name, alias in after.items()} == {
        b"stays": (1, 7),
        b"changes": (1, 7),
        b"comes": (0, 0),
    }
    assert after[b"changes"].queues == (b"b", b"c")
    assert after[b"comes"].queues == (b"goes",), "it is a queue now"


def test_alias_that_was_removed_starts_at_zero() -> None:
    first = rebuild_aliases({}, configured(all=["a"]))
    first[b"all"].count(7)
    again = rebuild_aliases(rebuild_aliases(first, configured()), configured(all=["a"]))
    assert again[b"all"].put_items == 0
