"""What an administrator asks and changes: topics, configs, brokers, groups, transactions.

What belongs here: `AsyncAdmin`, the calls behind its methods (plain functions, by subject), and the
plain data that they return.
What never may: anything about records, and anything that waits in the background: every call is
made when it is asked for, and is over when it returns.
"""
