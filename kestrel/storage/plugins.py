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
from kestrel.storage.failures import fault
from kestrel.storage.interfaces import IStorageFactory
from kestrel.storage.plugin import FAULTS, DropIn, EnteredPlugin, Plugin
from kestrel.storage.plugin_factory import PluginFactory

GROUP: Final = "kestrel.storage_backends"
"""The group of entry points. The name of one is the word before the colon of a description."""


class Survey(NamedTuple):
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
    entered = _entered_plugins()
    of_that_name: Sequence[Plugin] = [plugin for plugin in entered if plugin.name == name]
    if not of_that_name:
        dropped, broken = _drop_ins()
        of_that_name = [plugin for plugin in dropped if plugin.name == name]
        if not of_that_name:
            there_are = sorted({*built_in, *(plugin.name for plugin in (*entered, *dropped))})
            raise BadStorageArgument(_no_such(name, there_are, broken))
    return PluginFactory(_only(of_that_name))


def survey(built_in: Collection[str]) -> Survey:
    """Look at every plugin, which imports all of them. Nothing is raised."""
    dropped, broken = _drop_ins()
    entered: Sequence[Plugin] = ()
    try:
        entered = _entered_plugins()
    except BrokenStoragePlugin as error:
        broken.append(str(error))
    ignored = []
    by_name: dict[str, list[Plugin]] = defaultdict(list)
    entered_names = {plugin.name for plugin in entered}
    for plugin in (*entered, *dropped):
        if plugin.name in built_in:
            ignored.append(f"{plugin}: a built-in storage has that name")
        elif isinstance(plugin, DropIn) and plugin.name in entered_names:
            ignored.append(f"{plugin}: an installed distribution has one of that name")
        else:
            by_name[plugin.name].append(plugin)
    usable = []
    for _, plugins in sorted(by_name.items()):
        try:
            usable.append(PluginFactory(_only(plugins)))
        except BrokenStoragePlugin as error:
            broken.append(str(error))
    return Survey(usable, ignored, broken)


def _no_such(name: str, there_are: Sequence[str], broken: Sequence[str]) -> str:
    close = get_close_matches(name, there_are, 1)
    sentence = f"there is no storage {name!r}; there are {', '.join(there_are)}"
    if close:
        sentence += f" (did you mean {close[0]}?)"
    return "; ".join([f"{sentence}; twistd kestrel --help-storage lists them", *broken])


def _only(plugins: Sequence[Plugin]) -> Plugin:
    """The one of that name; which of several was meant nobody knows."""
    if len(plugins) > 1:
        places = " and ".join(f"{plugin.origin} ({plugin.reference})" for plugin in plugins)
        raise BrokenStoragePlugin(f"there is more than one storage {plugins[0].name!r}: {places}; remove all but one")
    return plugins[0]


def _entered_plugins() -> list[Plugin]:
    try:
        return [EnteredPlugin(entry) for entry in entry_points(group=GROUP)]
    except FAULTS as error:  # what any distribution has written there is read, whatever it is
        sentence = f"the entry points of what is installed cannot be read: {fault(error)}"
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
                    plugin = DropIn(str(value.name), origin, f"{module.name}:{attribute}", value)
                    found.setdefault(id(value), plugin)
        except FAULTS as error:
            broken.append(f"{origin} cannot be used: {fault(error)}")
    return list(found.values()), broken
