"""A folder of queues as the tools read it: which files there are, and what they hold."""
