"""State machines whose state is a log: one per led partition of an internal topic.

    topic ── partition led here, in this epoch ─▶ hosts ─▶ host: load, start, handle ─▶ log
      └─ created by `topic` on first use      finding: whose partition is it, its leader ◀─ callers

Belongs here: what every such machine needs of a broker: reading its log, appending what it decides,
delaying answers until they are committed, ending it with its leadership (`host`, `hosts`), creating
the topic and finding the partition (`topic`, `finding`). Never here: what a machine decides, and
what only one kind of machine has (`groups`, `transactions`).
"""
