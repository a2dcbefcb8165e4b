"""What is known about a setting, kept at its field: Kestrel's name, the kind of value, its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from kestrel.config.setting_kinds import SettingKind

KEY: Final = "kestrel.setting"
"""Where a field's metadata hold its `Setting`."""


@attrs.frozen
class Setting:
    """One setting as a reader of documentation or of a file wants to know it."""

    kestrel_name: str
    kind: SettingKind
    help: str


def setting(kestrel_name: str, kind: SettingKind, help: str) -> dict[str, Setting]:
    """Metadata for `attrs.field`."""
    return {KEY: Setting(kestrel_name, kind, help)}


def settings_of(cls: type[attrs.AttrsInstance]) -> Mapping[str, Setting]:
    """The settings among the fields of that class, by the field's name, in order."""
    return {field.name: field.metadata[KEY] for field in attrs.fields(cls) if KEY in field.metadata}
