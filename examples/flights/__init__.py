"""The flights demo: a year of departures from New York, exactly once through a pipeline.

Belongs here: what a reader of the example needs to see, in the order of `demo.py`. Never here:
anything a user's program could not do, except starting the local cluster and killing processes.
"""
