"""A topic as a queue: a pool of workers that handles each record at least once.

Belongs here: which worker gets a record, which records are unfinished, and which offset may be
committed. Never here: calls to brokers; it uses the public consumer and producer.
"""
