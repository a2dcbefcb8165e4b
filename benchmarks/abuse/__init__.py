"""Clients that mean harm, one kind at a time, against a real server process: what an ordinary client has of it.

    python -m benchmarks.abuse --seconds 10

`verdict.py` says when an abuse has passed, `arena.py` how it is measured, `abuses.py` lists them all.
"""
