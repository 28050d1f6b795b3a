"""State machines whose state is a log: one per led partition of an internal topic.

    topic ── partition led here, in this epoch ─▶ hosts ─▶ host: load, start, handle ─▶ log
      └─ made by `topic` on first use      finding: whose partition is it, who leads it ◀─ callers

Belongs here: what every such machine needs of a broker: reading its log, appending what it decides,
holding back what may not be told yet, ending it with its leadership (`host`, `hosts`), making the
topic and finding the partition (`topic`, `finding`). Never here: what a machine decides, and
what only one kind of machine has (`groups`, `transactions`).
"""
