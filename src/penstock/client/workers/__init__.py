"""A topic as a queue: a pool of workers that handles each record at least once.

What belongs here: which worker gets a record, what is unfinished, and what may be committed
therefore. What never may: a call to a broker: it stands on the public consumer and producer.
"""
