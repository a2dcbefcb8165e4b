"""What each command does."""

from __future__ import annotations

from typing import Final

from kestrel.session.administration import ADMINISTRATION
from kestrel.session.batches import BATCHES
from kestrel.session.items import READS
from kestrel.session.puts import PUTS
from kestrel.session.session import Handlers

HANDLERS: Final[Handlers] = {**PUTS, **READS, **BATCHES, **ADMINISTRATION}
