"""The server process: the twistd plugin, and the only package that uses the real reactor."""
