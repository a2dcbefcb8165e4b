"""kestrel-qdump: a dump of the records and items in queue files."""
