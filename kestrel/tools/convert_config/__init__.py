"""kestrel-convert-config: the configuration of a Kestrel becomes one of this server."""
