"""Test doubles for kestrel: databases, disks, threads, transports and servers with faults, most of them in memory."""
