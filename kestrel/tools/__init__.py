"""Command line tools for the people who look after a server: what is in a journal, and making it small."""
