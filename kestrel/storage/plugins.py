"""Discovery of storage plugins of other distributions.

Plugins are entry points of the group ``kestrel.storage_backends``. Drop-ins are also plugins: objects that provide
`IPlugin` and `IStorageFactory`, in modules of folders ``twisted/plugins``. Plugins are looked for only on request, and
an entry point is imported only if its storage is used. So a broken plugin does not affect a server without it.
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
from kestrel.storage.plugin import FAULTS, DropInPlugin, EntryPointPlugin, Plugin, PluginFactory

GROUP: Final = "kestrel.storage_backends"
"""The group of entry points. The name of an entry point is the word before the colon of a description."""


class PluginList(NamedTuple):
    """All plugins that were found."""

    usable: Sequence[PluginFactory]
    """Plugins that can be used, in order of their names."""
    ignored: Sequence[str]
    """Messages about plugins whose name belongs to another storage."""
    broken: Sequence[str]
    """Messages about plugins that cannot be used."""


def plugin_named(name: str, built_in: Collection[str]) -> PluginFactory:
    """Return the factory of the plugin with that name. The caller checks the built-in storages first.

    Raises `BadStorageArgument` if there is none, or `BrokenStoragePlugin` if it cannot be used. `built_in` is listed in
    the first message.
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
    """Return all plugins. Imports all of them, and raises nothing."""
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
    """Return the only plugin. Raises `BrokenStoragePlugin` if there are several, because any of them may be meant."""
    if len(plugins) > 1:
        places = " and ".join(f"{plugin.origin} ({plugin.reference})" for plugin in plugins)
        raise BrokenStoragePlugin(f"there is more than one storage {plugins[0].name!r}: {places}; remove all but one")
    return plugins[0]


def _entry_point_plugins() -> list[Plugin]:
    try:
        return [EntryPointPlugin(entry) for entry in entry_points(group=GROUP)]
    except FAULTS as error:  # the metadata of all distributions is read, and may be damaged
        sentence = f"the entry points of what is installed cannot be read: {describe_error(error)}"
        raise BrokenStoragePlugin(sentence) from error


def _drop_ins() -> tuple[list[Plugin], list[str]]:
    """Return the drop-ins, and messages about modules that cannot be imported.

    `twisted.plugin.getPlugins` finds the same objects, but logs failed imports. The server looks for its storage before
    it has a log, so tracebacks would go to stderr.
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
