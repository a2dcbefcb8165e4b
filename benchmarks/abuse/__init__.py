"""Clients that mean harm, one kind at a time, against a real server process: what an ordinary client has of it.

    python -m benchmarks.abuse --seconds 10

`verdict.py` decides whether an abuse has passed, `measurement.py` measures it, and `catalogue.py` lists all abuses.
"""
