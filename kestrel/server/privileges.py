"""What is made before twistd gives root's privileges up (`--uid`, `--gid`) and must be the user's all the same."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from typing import TypeVar

from twisted.python.util import runAsEffectiveUser

_Made = TypeVar("_Made")


def call_as_user(uid: int | None, gid: int | None, make: Callable[[], _Made]) -> _Made:
    """Make that with the rights of the user and the group that the server will run as; None: as it is.

    So a file belongs to them, and what they may not write root does not write for them, wherever a link leads. Who is
    not root makes it as it is: twistd says next that it cannot run as somebody else.
    """
    if (uid is None and gid is None) or os.geteuid() != 0:
        return make()
    user = 0 if uid is None else uid
    group = pwd.getpwuid(user).pw_gid if gid is None else gid
    made: _Made = runAsEffectiveUser(user, group, make)
    return made
