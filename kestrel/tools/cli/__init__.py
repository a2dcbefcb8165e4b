"""kestrel-cli: puts, gets and administration of a server's queues from the shell."""
