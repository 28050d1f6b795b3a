"""Consume, transform, produce: a handler's output and the offsets behind it are one transaction.

Belongs here: when the loop commits, aborts and retries (`machine.py`, pure), and the loop itself.
Never here: calls to brokers; it uses the public consumer, producer and admin. Start with
`machine.py`.
"""
