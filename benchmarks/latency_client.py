"""One client process of `latency.py`: `python -m benchmarks.latency_client JOB`, JOB as JSON.

Each side's clients are imported only here and only if asked for: a process has nobody else's
threads, and a peer that is not installed is not missed.
"""

import importlib
import json
import sys
from dataclasses import asdict

from benchmarks.latency_job import Gate, Job, say

MODULES = {
    "ours": "benchmarks.latency_ours",
    "kafka": "benchmarks.latency_kafka",
    "nats": "benchmarks.latency_nats",
    "bare": "benchmarks.bare_pattern",
}
"""Each has a function `ROLE(job, gate) -> Sample` for every role that the side plays."""


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    run = getattr(importlib.import_module(MODULES[job.side]), job.role)
    sample = run(job, Gate())
    say("sample", sample=asdict(sample))


if __name__ == "__main__":
    main()
