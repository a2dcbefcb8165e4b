"""Kestrel's journal format. Imports the standard library only, so that tools and workers stay light."""
