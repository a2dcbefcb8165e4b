"""Means for tests: a disk with faults, threads that run when told, a network in memory."""
