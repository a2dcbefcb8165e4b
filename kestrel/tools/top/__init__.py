"""kestrel-cli top: the dashboard in a terminal."""
