"""One script per number the documentation prints; `python -m benchmarks` runs them all.

Belongs here: measurements against a peer or a limit in the same run, one JSON line per figure.
Never here: anything the product or its tests need; timing assertions.
"""
