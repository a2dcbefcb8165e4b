"""Our server beside its peers: the same work for each, by a load generator in C."""
