"""The access list of the server's nodes in ZooKeeper."""

from __future__ import annotations

import re
from typing import Final

from kestrel.config.setting_kinds import SettingKind
from kestrel.config.value_text import show_value

PREDEFINED_ACLS: Final = ("open-unsafe", "everyone-read-creator-all")

# scheme:id:permissions, as in ZooKeeper's own tools. An id may contain colons (digest:user:hash).
_ENTRY: Final = re.compile(r"[^:]+:.+:[cdrwa]+")


def _acl(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str) and value in PREDEFINED_ACLS:
        return value
    if isinstance(value, list) and value:
        return tuple(_entry(each) for each in value)
    ready_made = " or ".join(f'"{word}"' for word in PREDEFINED_ACLS)
    raise ValueError(f'{show_value(value)} is neither {ready_made} nor a list like ["world:anyone:r"]')


def _entry(value: object) -> str:
    if not isinstance(value, str) or not _ENTRY.fullmatch(value):
        raise ValueError(f'{show_value(value)} is not scheme:id:permissions; write for example "world:anyone:r"')
    return value


def _show(acl: str | tuple[str, ...]) -> str:
    return acl if isinstance(acl, str) else ",".join(acl)


ACL: Final = SettingKind("ready-made access list, or a list of scheme:id:permissions", _acl, _show)
