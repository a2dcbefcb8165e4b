"""One client: what it may do, what it has open, what is still to be said to it."""
