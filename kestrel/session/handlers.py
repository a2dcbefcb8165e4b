"""What each command does."""

from __future__ import annotations

from typing import Final

from kestrel.session.administration import ADMINISTRATION
from kestrel.session.items import ITEM_COMMANDS
from kestrel.session.session import Handlers

HANDLERS: Final[Handlers] = {**ITEM_COMMANDS, **ADMINISTRATION}
