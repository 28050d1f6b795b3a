"""The sync clients: each wraps its async namesake and drives it from one loop thread.

What belongs here: waiting in the calling thread, Ctrl-C, the end of the process. What never may: a
decision, a retry or a message of the protocol: a second copy of what the async clients do.
"""
