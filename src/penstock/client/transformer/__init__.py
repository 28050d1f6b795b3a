"""Consume, transform, produce: handlers whose output and progress are one transaction.

What belongs here: when the loop commits, gives up and tries again (`machine.py`, pure), and the
loop itself. What never may: a call to a broker: it stands on the public consumer, producer and
admin. Start reading at `machine.py`.
"""
