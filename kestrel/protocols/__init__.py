"""Wire protocols without I/O: codecs between bytes and commands or results."""
