"""Abusive clients against a real server process, one kind at a time, and the latency of an ordinary client.

    python -m benchmarks.abuse --seconds 10

`verdict.py` decides whether the server passes, `measurement.py` measures an abuse, and `catalogue.py` lists all abuses.
"""
