"""Collects what one event asks the shell to do, and becomes its `Ready`."""

from dataclasses import dataclass, field

from penstock.core.control import contract as c


@dataclass(slots=True)
class Outbox:
    """Mutable while one event is handled; one write per event at most. Its fields: see `Ready`."""

    writes: tuple[tuple[c.DocumentWrite, ...], ...] = ()
    write_id: int = 0
    stored_only: bool = False
    reload: bool = False
    replies: list[c.Reply] = field(default_factory=list)
    messages: list[c.SessionMessage] = field(default_factory=list)
    metadata_version: int | None = None
    decisions: list[c.Decision] = field(default_factory=list)
    deposed: bool = False
    take_over_again: bool = False

    def note(self, event: str, **fields: object) -> None:
        """Something for the log that an operator should know."""
        self.decisions.append(c.Decision(c.Severity.WARNING, event, fields))

    def ready(self) -> c.Ready:
        """What was collected."""
        return c.Ready(
            writes=self.writes,
            write_id=self.write_id,
            stored_only=self.stored_only,
            reload=self.reload,
            replies=tuple(self.replies),
            session_messages=tuple(self.messages),
            metadata_version=self.metadata_version,
            decisions=tuple(self.decisions),
            deposed=self.deposed,
            take_over_again=self.take_over_again,
        )
