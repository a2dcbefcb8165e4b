"""Storages of other distributions: where they are looked for.

First among the entry points of the group ``kestrel.storage_backends``, then among drop-ins: objects of modules in
folders ``twisted/plugins`` that provide `IPlugin` and `IStorageFactory`. All of it happens when somebody asks, and only
a backend that is asked for is imported from an entry point: what is broken there is nothing to a server without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, NamedTuple

from twisted.plugin import IPlugin
from twisted.python.modules import getModule

from kestrel.errors import BadStorageArgument, BrokenStoragePlugin
from kestrel.storage.failures import describe_error
from kestrel.storage.interfaces import IStorageFactory
from kestrel.storage.plugin import FAULTS, DropInPlugin, EntryPointPlugin, Plugin
from kestrel.storage.plugin_factory import PluginFactory

GROUP: Final = "kestrel.storage_backends"
"""The group of entry points. The name of one is the word before the colon of a description."""


class PluginList(NamedTuple):
    """All plugins that there are."""

    usable: Sequence[PluginFactory]
    """Those that can be named, by their names."""
    ignored: Sequence[str]
    """Sentences about those whose name means another storage."""
    broken: Sequence[str]
    """Sentences about those that cannot be used."""


def plugin_named(name: str, built_in: Collection[str]) -> PluginFactory:
    """The factory of that name, which is none of the built-in ones.

    Raises `BadStorageArgument` when there is none, `BrokenStoragePlugin` when it cannot be used.
    """
    from_entry_points = _entry_point_plugins()
    matches: Sequence[Plugin] = [plugin for plugin in from_entry_points if plugin.name == name]
    if not matches:
        from_drop_ins, broken = _drop_ins()
        matches = [plugin for plugin in from_drop_ins if plugin.name == name]
        if not matches:
            known = sorted({*built_in, *(plugin.name for plugin in (*from_entry_points, *from_drop_ins))})
            raise BadStorageArgument(_unknown_name_message(name, known, broken))
    return PluginFactory(_single(matches))


def list_plugins(built_in: Collection[str]) -> PluginList:
    """Look at every plugin, which imports all of them. Nothing is raised."""
    from_drop_ins, broken = _drop_ins()
    from_entry_points: Sequence[Plugin] = ()
    try:
        from_entry_points = _entry_point_plugins()
    except BrokenStoragePlugin as error:
        broken.append(str(error))
    ignored = []
    by_name: dict[str, list[Plugin]] = defaultdict(list)
    entry_point_names = {plugin.name for plugin in from_entry_points}
    for plugin in (*from_entry_points, *from_drop_ins):
        if plugin.name in built_in:
            ignored.append(f"{plugin}: a built-in storage has that name")
        elif isinstance(plugin, DropInPlugin) and plugin.name in entry_point_names:
            ignored.append(f"{plugin}: an installed distribution has one of that name")
        else:
            by_name[plugin.name].append(plugin)
    usable = []
    for _, plugins in sorted(by_name.items()):
        try:
            usable.append(PluginFactory(_single(plugins)))
        except BrokenStoragePlugin as error:
            broken.append(str(error))
    return PluginList(usable, ignored, broken)


def _unknown_name_message(name: str, known: Sequence[str], broken: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    sentence = f"there is no storage {name!r}; there are {', '.join(known)}"
    if close:
        sentence += f" (did you mean {close[0]}?)"
    return "; ".join([f"{sentence}; twistd kestrel --help-storage lists them", *broken])


def _single(plugins: Sequence[Plugin]) -> Plugin:
    """The one of that name; which of several was meant nobody knows."""
    if len(plugins) > 1:
        places = " and ".join(f"{plugin.origin} ({plugin.reference})" for plugin in plugins)
        raise BrokenStoragePlugin(f"there is more than one storage {plugins[0].name!r}: {places}; remove all but one")
    return plugins[0]


def _entry_point_plugins() -> list[Plugin]:
    try:
        return [EntryPointPlugin(entry) for entry in entry_points(group=GROUP)]
    except FAULTS as error:  # what any distribution has written there is read, whatever it is
        sentence = f"the entry points of what is installed cannot be read: {describe_error(error)}"
        raise BrokenStoragePlugin(sentence) from error


def _drop_ins() -> tuple[list[Plugin], list[str]]:
    """Those that there are, and sentences about modules that cannot be imported.

    `twisted.plugin.getPlugins` finds the same, but only logs what it cannot import; and before there is a log, which is
    when a server looks for its storage, that means tracebacks on stderr.
    """
    package = import_module("twisted.plugins")
    found: dict[int, Plugin] = {}  # a module may have imported the object of another
    broken = []
    for module in getModule(package.__name__).iterModules():
        origin = f"the drop-in {module.filePath.path}"
        try:
            for attribute, value in vars(import_module(module.name)).items():
                if IPlugin.providedBy(value) and IStorageFactory.providedBy(value):
                    plugin = DropInPlugin(str(value.name), origin, f"{module.name}:{attribute}", value)
                    found.setdefault(id(value), plugin)
        except FAULTS as error:
            broken.append(f"{origin} cannot be used: {describe_error(error)}")
    return list(found.values()), broken
