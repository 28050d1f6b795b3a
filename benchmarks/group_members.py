"""Members of consumer groups in a process of their own, and the handle to such a process.

    MemberProcess ──stdin: a command per line──▶ python -m benchmarks.group_members
          ▲──────── stdout: an event per line, as JSON ────────┘

Times are seconds of the machine's monotonic clock, which all its processes share. A member
process ends with its standard input, so with whoever started it. It is the only one of its
process group: Ctrl-C does not reach it, and if its parent dies while it is stopped by SIGSTOP,
the kernel wakes it with a SIGHUP, as it does for every orphaned group.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import IO, Any

from penstock.client import AsyncConsumer, ConsumerConfig, TopicPartition
from penstock.errors import PenstockError

JOINS_AT_ONCE = 20
OFFSET_LIMIT = 1 << 60
"""Members that measure commits stand here and commit what lies before, so that the client need
not ask a leader where its log ends, as it need not for what it has read."""


def longest_pause(times: Sequence[float], begin: float, end: float) -> float:
    """The longest stretch without any of `times` (rising) that lies partly in [begin, end].

    It counts whole: from the last time before `begin` to the first after `end`, where there are
    any, so that a pause is not shortened by looking for a shorter time.
    """
    first = max(bisect_right(times, begin) - 1, 0)
    last = bisect_left(times, end) + 1
    seen = list(times[first:last])
    if not seen or seen[0] > begin:
        seen.insert(0, begin)
    if seen[-1] < end:
        seen.append(end)
    return max(after - before for before, after in pairwise(seen))


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Member:
    """One consumer that polls for ever. It is its own listener."""

    def __init__(
        self,
        index: int,
        bootstrap: str,
        topics: list[str],
        config: ConsumerConfig,
        *,
        resting: bool,
    ) -> None:
        """`resting`: it owns its partitions and fetches nothing."""
        self.index = index
        self.consumer = AsyncConsumer(bootstrap, config)
        self.arrivals: dict[TopicPartition, list[float]] = {}
        """Of the partitions owned now: when they came, then when records came."""
        self.commits: list[float] | None = None
        """When commits were stored; None = none are made by hand."""
        self._topics = topics
        self._resting = resting
        self.assigned = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; then leaves."""
        try:
            async with self.consumer as consumer:
                await consumer.subscribe(self._topics, listener=self)
                say("joining", at=time.monotonic())
                try:
                    while True:
                        await self._turn()
                finally:
                    say("leaving", at=time.monotonic())
        finally:
            say("left", member=self.index)

    async def _turn(self) -> None:
        batches = await self.consumer.poll(60.0 if self._resting else 1.0)
        now = time.monotonic()
        for where in {batch.topic_partition for batch in batches}:
            arrivals = self.arrivals[where]
            arrivals.append(now)
            if len(arrivals) == 2:
                say("reading", member=self.index, where=str(where), at=now)
        if batches and self.commits is not None:
            await self.consumer.commit()
            self.commits.append(time.monotonic())

    async def commit_for(self, seconds: float, per_call: int) -> int:
        """Commits `per_call` offsets at a time, one call after the other; how many calls."""
        places = await self._stand_on(per_call)
        calls, first, end = 0, _new_offset(), time.monotonic() + seconds
        while time.monotonic() < end:
            await self.consumer.commit(dict.fromkeys(places, first + calls))
            calls += 1
        return calls

    async def commit_pipelined(self, seconds: float) -> int:
        """Commits one offset after the other without waiting; how many, when all have answers.

        Between two commits others have a turn, as they have between two records of a consumer.
        """
        (where,) = await self._stand_on(1)
        commits, first, end = 0, _new_offset(), time.monotonic() + seconds
        answers: list[PenstockError | None] = []
        while time.monotonic() < end:
            await self.consumer.commit_async({where: first + commits}, answers.append)
            commits += 1
            await asyncio.sleep(0)
        await self.consumer.commit({where: first + commits})  # answers come in order
        assert len(answers) == commits
        assert set(answers) <= {None}, f"{where}: {next(filter(None, answers))}"
        return commits + 1

    async def _stand_on(self, count: int) -> list[TopicPartition]:
        places = sorted(self.consumer.assignment())[:count]
        for where in places:
            await self.consumer.seek(where, OFFSET_LIMIT)
        return places

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        now = time.monotonic()
        for where in partitions:
            self.arrivals[where] = [now]
        if self._resting:
            await self.consumer.pause(partitions)
        self.assigned.set()
        self._owned(now)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        for where in partitions:
            self.arrivals.pop(where, None)
        self._owned(time.monotonic())

    on_lost = on_revoked

    def _owned(self, now: float) -> None:
        owned = sorted(str(where) for where in self.arrivals)
        say("owned", member=self.index, at=now, owned=owned)


def _new_offset() -> int:
    """Offsets never go back: those of a later measurement lie behind those of an earlier one."""
    return time.monotonic_ns() // 1_000


class Members:
    """All members of this process; each method answers a command of the same name."""

    def __init__(self, make: Callable[[int], Member], tasks: asyncio.TaskGroup) -> None:
        self._make = make
        self._tasks = tasks
        self._joining = asyncio.Semaphore(JOINS_AT_ONCE)
        self._running: list[tuple[Member, asyncio.Task[None]]] = []

    async def start(self, count: str) -> None:
        """So many more members; returns when each was given something."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(int(count)):
                tasks.create_task(self._start())

    async def _start(self) -> None:
        async with self._joining:
            member = self._make(len(self._running))
            self._running.append((member, self._tasks.create_task(member.run())))
            await member.assigned.wait()

    async def stop(self) -> None:
        """The youngest member leaves."""
        _, task = self._running.pop()
        task.cancel()
        await asyncio.wait([task])

    async def commit(self) -> None:
        """From now on members commit after every poll that had records."""
        for member, _ in self._running:
            member.commits = []

    async def pauses(self, begin: str, end: str) -> None:
        """Of partitions that members here have owned since `begin` or longer."""
        found = [
            longest_pause(times[1:], float(begin), float(end))
            for member, _ in self._running
            for times in member.arrivals.values()
            if times[0] <= float(begin)
        ]
        say("pauses", partitions=len(found), longest=max(found, default=0.0))

    async def commit_pauses(self, begin: str, end: str) -> None:
        found = [
            longest_pause(member.commits or [], float(begin), float(end))
            for member, _ in self._running
        ]
        say("commit_pauses", longest=max(found, default=0.0))

    async def commit_rate(self, seconds: str, per_call: str) -> None:
        """Commits of all members together, each waited for, over `seconds`."""
        await self._rate(
            "commit_rate", lambda member: member.commit_for(float(seconds), int(per_call))
        )

    async def pipelined_rate(self, seconds: str) -> None:
        """As `commit_rate`, one offset each and waited for at the end."""
        await self._rate("pipelined_rate", lambda member: member.commit_pipelined(float(seconds)))

    async def _rate(self, event: str, work: Callable[[Member], Coroutine[Any, Any, int]]) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work(member)) for member, _ in self._running]
        took_s = time.monotonic() - began
        commits = sum(task.result() for task in running)
        say(event, commits=commits, per_s=commits / took_s)


async def _serve(args: argparse.Namespace) -> None:
    def make(index: int) -> Member:
        config = ConsumerConfig(
            group_id=args.group.replace("%", str(index)),
            session_timeout_ms=args.session_timeout_ms,
            auto_offset_reset="earliest",
            enable_auto_commit=not args.resting,
            auto_commit_interval_ms=1_000,
            client_id=f"bench-{os.getpid()}-{index}",
        )
        return Member(index, args.bootstrap, args.topic, config, resting=args.resting)

    commands = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(commands)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        members = Members(make, tasks)
        while line := await commands.readline():
            name, *arguments = line.decode().split()
            await getattr(members, name)(*arguments)
            say("done", command=name)
        os._exit(0)  # whoever started this is gone or has had enough: nobody needs a farewell


class MemberProcess:
    """A process of members. What it said is in the fields, up to the last line it wrote."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        *,
        session_timeout_ms: int = 45_000,
        resting: bool = False,
    ) -> None:
        """`%` in `group` stands for the member's number, which makes a group for each.

        `resting`: members own their partitions, fetch nothing and commit nothing by themselves.
        """
        command = [sys.executable, "-m", "benchmarks.group_members", bootstrap, group]
        command += [f"--topic={topic}" for topic in topics]
        command += [f"--session-timeout-ms={session_timeout_ms}"]
        command += ["--resting"] if resting else []
        self.owned: dict[int, frozenset[str]] = {}
        """By member: what it owns."""
        self.reading: dict[str, float] = {}
        """By partition: when its first record came to its latest owner here."""
        self.changed_at = self.joining_at = self.leaving_at = 0.0
        self._answers: dict[str, dict[str, Any]] = {}
        self._done: list[str] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def tell(self, command: str, *arguments: object) -> None:
        """Gives a command without waiting for its end."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join([command, *map(str, arguments)]) + "\n")
        self.process.stdin.flush()

    def await_done(self, command: str, timeout_s: float = 120.0) -> dict[str, Any]:
        """Waits for the end of a command given before; its last event of the same name."""
        with self._news:
            if not self._news.wait_for(lambda: command in self._done or self._ended(), timeout_s):
                raise SystemExit(f"members did not {command} within {timeout_s:.0f} s")
            if command not in self._done:
                raise SystemExit(f"a process of members ended: exit {self.process.poll()}")
            self._done.remove(command)
            return self._answers.get(command, {})

    def ask(self, command: str, *arguments: object, timeout_s: float = 120.0) -> dict[str, Any]:
        self.tell(command, *arguments)
        return self.await_done(command, timeout_s)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """kill -9, and gone."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _ended(self) -> bool:
        return not self._reader.is_alive() or self.process.poll() is not None

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            said = json.loads(line)
            with self._news:
                self._note(said)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _note(self, said: dict[str, Any]) -> None:
        match said["event"]:
            case "owned":
                before = self.owned.get(said["member"], frozenset())
                self.owned[said["member"]] = frozenset(said["owned"])
                for where in before ^ self.owned[said["member"]]:
                    self.reading.pop(where, None)
                self.changed_at = said["at"]
            case "reading":
                self.reading[said["where"]] = said["at"]
            case "joining":
                self.joining_at = said["at"]
            case "leaving":
                self.leaving_at = said["at"]
            case "left":
                self.owned.pop(said["member"], None)
            case "done":
                self._done.append(said["command"])
            case other:
                self._answers[other] = said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("group")
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--session-timeout-ms", type=int, required=True)
    parser.add_argument("--resting", action="store_true")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
