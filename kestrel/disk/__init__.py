"""File operations: the only code of the server that writes files."""
