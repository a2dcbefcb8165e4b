"""Maintenance of many folders in parallel: verify, pack, export and import."""
