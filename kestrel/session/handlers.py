"""The table of all command handlers."""

from __future__ import annotations

from typing import Final

from kestrel.session.administration import ADMINISTRATION
from kestrel.session.get_many import GET_MANY
from kestrel.session.gets import GETS
from kestrel.session.inspection import INSPECTION
from kestrel.session.puts import PUTS
from kestrel.session.ranges import RANGES
from kestrel.session.session import Handlers

HANDLERS: Final[Handlers] = {**PUTS, **GETS, **GET_MANY, **RANGES, **INSPECTION, **ADMINISTRATION}
