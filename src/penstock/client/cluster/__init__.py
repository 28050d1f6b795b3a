"""The client's connections to the brokers, and its metadata: who leads and who coordinates what.

Belongs here: opening channels, finding a broker that answers, keeping the metadata fresh, sending
calls to partition leaders or to a coordinator and retrying when those have moved. Never here:
records, groups and transactions; the packages for those use this one. Start with `cluster.py`.
"""
