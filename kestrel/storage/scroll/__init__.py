"""The scroll backend: queues in libkestrel's journals, which a parent shares with its children."""
