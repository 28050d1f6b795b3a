"""Administration: topics, configs, brokers, groups, transactions.

Belongs here: `AsyncAdmin`, the calls behind its methods (plain functions, one `…_calls` module per
subject), and the plain data they return. Never here: records, and background tasks: a call starts
when it is made and is over when it returns. Start with `admin.py`.
"""
