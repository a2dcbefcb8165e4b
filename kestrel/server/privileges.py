"""Creation of files before twistd gives up root's privileges (`--uid`, `--gid`), with the rights of the later user."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from typing import TypeVar

from twisted.python.util import runAsEffectiveUser

_Made = TypeVar("_Made")


def call_as_user(uid: int | None, gid: int | None, make: Callable[[], _Made]) -> _Made:
    """Call `make` with the rights of the user and group that the server will run as, and return its result.

    So the files belong to that user, and root does not write through a link to a file that the user may not write. A
    `uid` of None keeps root, and a `gid` of None means the user's group. Without root's privileges, `make` is called
    directly: twistd itself then reports that it cannot change the user.
    """
    if (uid is None and gid is None) or os.geteuid() != 0:
        return make()
    user = 0 if uid is None else uid
    group = pwd.getpwuid(user).pw_gid if gid is None else gid
    made: _Made = runAsEffectiveUser(user, group, make)
    return made
