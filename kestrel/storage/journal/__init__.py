"""The journal backend: queues in Kestrel's journal files."""
