"""What a process has started, also in process groups and sessions of their own."""

from pathlib import Path


def descendants_of(pid: int) -> dict[int, str]:
    """Every running process below `pid` by parentage: pid and command line. Zombies do not run."""
    below: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        below.setdefault(int(parent), []).append(int(entry.name))
        if state != "Z":
            commands[int(entry.name)] = command
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        children = below.get(waiting.pop(), [])
        waiting += children
        found |= {child: commands[child] for child in children if child in commands}
    return found


def still_running(processes: dict[int, str]) -> dict[int, str]:
    """Those that run on, by pid and command line: a number given again is another process."""
    left = {}
    for pid, command in processes.items():
        entry = Path("/proc", str(pid))
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            now = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state != "Z" and now == command:
            left[pid] = command
    return left
