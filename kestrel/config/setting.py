"""The description of a setting, stored at its field: Kestrel's name, the kind of value, and a help text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import attrs

from kestrel.config.setting_kinds import SettingKind

T = TypeVar("T")

KEY: Final = "kestrel.setting"
"""Key of a field's metadata for its `Setting`."""


@attrs.frozen
class Setting:
    """The description of one setting."""

    kestrel_name: str
    kind: SettingKind
    help: str


def setting(kestrel_name: str, kind: SettingKind, help: str, default: T, *, repr: bool = True) -> T:
    """Return a field with a default that `settings_of` finds. `repr` is as for `attrs.field`."""
    field: T = attrs.field(default=default, repr=repr, metadata=described(kestrel_name, kind, help))
    return field


def described(kestrel_name: str, kind: SettingKind, help: str) -> dict[str, Setting]:
    """Return metadata for `attrs.field`, for a setting without a default."""
    return {KEY: Setting(kestrel_name, kind, help)}


def settings_of(cls: type[attrs.AttrsInstance]) -> Mapping[str, Setting]:
    """Return the settings among the fields of a class, by the field's name, in order."""
    return {field.name: field.metadata[KEY] for field in attrs.fields(cls) if KEY in field.metadata}
