"""The pluggable edge: the storage contract, the commit barrier, and the backends that ship."""
