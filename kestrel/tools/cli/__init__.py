"""kestrel-cli: what a server's queues hold, and what is done with them, from the shell."""
