"""Command line tools: for the journals, and for whoever talks to a server from the shell."""
