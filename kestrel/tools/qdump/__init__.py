"""kestrel-qdump: what is in a queue's files, shown."""
