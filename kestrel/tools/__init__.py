"""Command line tools for journals and scrolls, and for talking to a server from the shell."""
