"""The storage contract, the commit barrier, and the built-in storages."""
