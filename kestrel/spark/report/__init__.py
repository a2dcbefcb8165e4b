"""The command kestrel-report: its data, texts, page and folder."""
