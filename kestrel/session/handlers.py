"""What each command does."""

from __future__ import annotations

from typing import Final

from kestrel.session.administration import ADMINISTRATION
from kestrel.session.inspection import INSPECTION
from kestrel.session.items import READS
from kestrel.session.many import MANY
from kestrel.session.puts import PUTS
from kestrel.session.ranges import RANGES
from kestrel.session.session import Handlers

HANDLERS: Final[Handlers] = {**PUTS, **READS, **MANY, **RANGES, **INSPECTION, **ADMINISTRATION}
