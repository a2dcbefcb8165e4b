"""`kestrel-cli top`: a dashboard in the terminal."""
