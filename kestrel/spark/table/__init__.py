"""Journals and scrolls as a table: which files count, who reads which part of them, and what becomes columns."""
