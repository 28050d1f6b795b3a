"""Copies topics from Apache Kafka, and back: `penstock import` and `penstock export`.

What belongs here: what a topic of one becomes in the other (`plan`), which records do not fit
(`fitting`), the copy itself and what it remembers (`copying`), and the two ends (`kafka`, `own`)
behind the seams of `model`. What never may: knowledge of the command line, or of brokers' insides.
Only `kafka` and the modules named after it import confluent-kafka (extra `kafka`), and only when it
is used.

    Source ──Rows──▶ Copy ──Rows──▶ Target
                      └── Progress, stored beside the target's data
"""
