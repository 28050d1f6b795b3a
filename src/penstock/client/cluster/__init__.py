"""The client's way to the brokers: connections, who leads what, who coordinates what.

What belongs here: finding a broker that answers, keeping the metadata fresh, sending calls to the
leaders of partitions or to a coordinator and repeating them when those have moved. Here alone are
channels opened. What never may: records, groups and transactions; those rooms stand on this one.
Start reading at `cluster.py`.
"""
