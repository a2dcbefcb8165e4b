"""Error counts: the SAVE_XIDs that stand directly before an UNREMOVE and say how many errors its item has.

A bare UNREMOVE counts one error more. docs/decisions/0008 says why the counts are written in this way.
"""

from __future__ import annotations

from typing import Final

from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import JournalFileRecord

ERROR_COUNT_OPCODES: Final = frozenset({Opcode.REMOVE_TENTATIVE, Opcode.SAVE_XID, Opcode.UNREMOVE, Opcode.ADD_XID})
"""The opcodes of the records that have to be shown to `ErrorCounts`."""


class ErrorCounts:
    """Finds the error counts of one file, whose records are shown to it in order."""

    def __init__(self) -> None:
        self._errors = 0
        self._errors_end = -1
        """Where the record ends that said so, as an offset."""
        self._restated_end = -1
        """Where open reads end that a release before 2.1 wrote anew: ADD_XID and REMOVE_TENTATIVE for each."""

    def find(self, record: JournalFileRecord, offset: int) -> None:
        """Set the `errors` of this record, which stands at that offset, if the one directly before it counts them."""
        opcode, end = record.opcode, offset + record.size
        if opcode is Opcode.UNREMOVE:
            if offset == self._errors_end:
                record.errors = self._errors
        elif opcode is Opcode.SAVE_XID:
            # Behind restated open reads it is what its name says, and the next UNREMOVE may have come at any time.
            if record.xid >= 0 and offset != self._restated_end:
                self._errors, self._errors_end = record.xid, end
        elif opcode is Opcode.ADD_XID or (opcode is Opcode.REMOVE_TENTATIVE and offset == self._restated_end):
            self._restated_end = end
