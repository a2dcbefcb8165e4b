"""Wire protocols without I/O: bytes to commands, results to bytes."""
