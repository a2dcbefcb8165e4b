"""Error counts in journals: a SAVE_XID directly before an UNREMOVE has the number of errors of its item.

An UNREMOVE without a SAVE_XID adds one error. docs/decisions/0008 explains why the counts are written in this way.
"""

from __future__ import annotations

from typing import Final

from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import JournalFileRecord

ERROR_COUNT_OPCODES: Final = frozenset({Opcode.REMOVE_TENTATIVE, Opcode.SAVE_XID, Opcode.UNREMOVE, Opcode.ADD_XID})
"""The opcodes of the records that must be passed to `ErrorCounts.find`."""


class ErrorCounts:
    """A recogniser of the error counts of one file. Records must be passed to `find` in order."""

    def __init__(self) -> None:
        self._errors = 0
        self._errors_end = -1
        """Offset of the end of the SAVE_XID that set `_errors`."""
        self._restated_end = -1
        """Offset of the end of open reads that a release before 2.1 rewrote as ADD_XID and REMOVE_TENTATIVE."""

    def find(self, record: JournalFileRecord, offset: int) -> None:
        """Set `record.errors` if the record is an UNREMOVE directly after an error count. `offset` is its start."""
        opcode, end = record.opcode, offset + record.size
        if opcode is Opcode.UNREMOVE:
            if offset == self._errors_end:
                record.errors = self._errors
        elif opcode is Opcode.SAVE_XID:
            # After rewritten open reads, a SAVE_XID has the last xid and is not an error count.
            if record.xid >= 0 and offset != self._restated_end:
                self._errors, self._errors_end = record.xid, end
        elif opcode is Opcode.ADD_XID or (opcode is Opcode.REMOVE_TENTATIVE and offset == self._restated_end):
            self._restated_end = end
