"""libkestrel's journal format, the "infinite scroll": what was put is written once, and each reader keeps its place.

Imports the standard library only, as `kestrel.journal` does. docs/scroll_format.md is the format.
"""
