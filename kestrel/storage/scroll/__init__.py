"""The scroll backend: queues in libkestrel's journals. A parent shares its journal with its children."""
