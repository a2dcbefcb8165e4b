"""libkestrel's journal format, the "infinite scroll": each item is written once, and each reader has its own position.

docs/scroll_format.md describes the format. The package does not import Twisted, so that tools and Spark workers stay
light.
"""
