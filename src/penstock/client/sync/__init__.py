"""The sync clients: each wraps its async namesake and runs it on one event loop thread.

Belongs here: blocking the calling thread, Ctrl-C, the end of the process. Never here: decisions,
retries or protocol messages; the async clients have them.
"""
