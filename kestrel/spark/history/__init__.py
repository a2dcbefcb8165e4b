"""Histories of items: what became of each, from the records of its journal in order."""
