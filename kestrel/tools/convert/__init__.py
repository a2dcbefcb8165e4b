"""kestrel-convert: journals to scrolls and back."""
