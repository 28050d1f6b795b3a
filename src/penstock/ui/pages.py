"""The pages: each asks the reader, makes views, and has a template rendered. Thin on purpose.

Every page is complete without its script; `#live` is the part that refreshes itself, by asking for
the same page again. There are only GET routes, and no route changes anything.
"""

from pathlib import Path
from time import time_ns
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.client import TopicDescription, TopicPartition
from penstock.errors import MisuseError, PenstockError
from penstock.ui.paging import page_of
from penstock.ui.reader import Reader
from penstock.ui.records import Records, reason_of
from penstock.ui.rendering import Rendering
from penstock.views import cells
from penstock.views.answers import Answer, Logs, partition_sizes
from penstock.views.cells import Cell, Table
from penstock.views.groups import (
    GroupAnswer,
    group_facts,
    group_table,
    lag_table,
    member_table,
    pending_table,
    reader_table,
)
from penstock.views.overview import broker_table, explain, facts
from penstock.views.records import (
    COUNTS,
    DETAIL_BYTES,
    FORMS,
    Form,
    Page,
    Wanted,
    empty_note,
    page_note,
    parse_wanted,
    record_view,
)
from penstock.views.topics import (
    is_internal,
    partition_table,
    settings_table,
    topic_facts,
    topic_table,
)
from penstock.views.transactions import blocking_table, open_table

HERE: Final = Path(__file__).parent
TOPICS_SHOWN: Final = 50
PARTITIONS_SHOWN: Final = 100
GROUPS_SHOWN: Final = 25
READERS_MAX: Final = 100
"""Groups that are asked whether they read a topic."""
TRANSACTIONS_SHOWN: Final = 200
FIELDS: Final = ("partition", "since_ms", "key", "text")
TIME_MAX_MS: Final = 10**15


class Pages:
    """Endpoints."""

    def __init__(self, reader: Reader, records: Records, rendering: Rendering) -> None:
        self._reader = reader
        self._records = records
        self._rendering = rendering

    @property
    def routes(self) -> list[BaseRoute]:
        one = "/topics/{topic}"
        record = f"{one}/records/{{partition:int}}/{{offset:int}}"
        return [
            Route("/", self.overview),
            Route("/topics", self.topics),
            Route(one, self.topic),
            Route(f"{one}/records", self.records),
            Route(f"{one}/settings", self.settings),
            Route(f"{one}/groups", self.readers),
            Route(record, self.record),
            Route(f"{record}/{{part}}.bin", self.raw),
            Route("/groups", self.groups),
            Route("/group", self.group),
            Route("/transactions", self.transactions),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ]

    # -- the cluster --------------------------------------------------------------------

    async def overview(self, request: Request) -> Response:
        seen = await self._reader.overview()
        why = explain(seen)
        return self._rendering.page(
            request,
            "overview.html",
            now=_oldest(seen.cluster, seen.logs, seen.short, seen.blocking, seen.moves),
            title="Overview",
            why=why,
            facts=facts(seen),
            tables=[broker_table(seen)] if seen.cluster.value else [],
        )

    async def transactions(self, request: Request) -> Response:
        listed = await self._reader.transactions()
        blocking = await self._reader.blocking()
        return self._rendering.page(
            request,
            "list.html",
            now=_oldest(listed, blocking),
            title="Transactions",
            problems=_problems(listed, blocking, await self._hidden()),
            tables=[
                open_table(listed.value or [], TRANSACTIONS_SHOWN),
                blocking_table(blocking.value or [], TRANSACTIONS_SHOWN),
            ]
            if listed.value is not None
            else [],
        )

    # -- topics -------------------------------------------------------------------------

    async def topics(self, request: Request) -> Response:
        answer = await self._reader.topics()
        sought, internal = request.query_params.get("q", ""), "internal" in request.query_params
        found = [
            one
            for name, one in sorted((answer.value or {}).items())
            if sought in name and (internal or not is_internal(name, one))
        ]
        query = {"q": sought, **({"internal": "on"} if internal else {})}
        shown, pager = page_of(request, found, TOPICS_SHOWN, query)
        moving = await self._reader.traffic() if shown else {}
        logs: Answer[Logs] = await self._reader.logs() if shown else Answer()
        hidden = await self._hidden()
        empty = (
            f"No topic has {sought!r} in its name."
            if sought
            else _none("topics", hidden, "create one: penstock topic create NAME")
        )
        return self._rendering.page(
            request,
            "list.html",
            now=_oldest(answer, logs),
            title="Topics",
            problems=_problems(answer, hidden),
            tables=[topic_table(shown, moving, empty)] if answer.value is not None else [],
            pager=pager,
            search=sought,
            internal=internal,
        )

    async def topic(self, request: Request) -> Response:
        answer = await self._topic(request)
        topic = answer.value
        if topic is None:
            return self._rendering.missing(request, answer.problem)
        shown, pager = page_of(request, topic.partitions, PARTITIONS_SHOWN, {})
        led = [TopicPartition(topic.topic, one.partition) for one in shown if one.leader >= 0]
        offsets = await self._reader.offsets(led)
        logs = await self._reader.logs()
        moving = (await self._reader.traffic()).get(topic.topic)
        sizes = partition_sizes(logs.value or Logs(0.0), topic.topic)
        return self._rendering.page(
            request,
            "topic.html",
            now=_oldest(answer, offsets, logs),
            title=topic.topic,
            topic=topic.topic,
            tab="partitions",
            facts=topic_facts(topic, moving),
            problems=_problems(offsets, logs),
            tables=[partition_table(topic, shown, offsets.value, sizes)],
            pager=pager,
        )

    async def settings(self, request: Request) -> Response:
        answer = await self._topic(request)
        if answer.value is None:
            return self._rendering.missing(request, answer.problem)
        found = await self._reader.settings(answer.value.topic)
        return self._rendering.page(
            request,
            "topic.html",
            now=_oldest(answer, found),
            title=f"{answer.value.topic}: settings",
            topic=answer.value.topic,
            tab="settings",
            problems=_problems(found),
            tables=[settings_table(found.value or [], answer.value)],
        )

    async def readers(self, request: Request) -> Response:
        answer = await self._topic(request)
        if answer.value is None:
            return self._rendering.missing(request, answer.problem)
        listed = await self._reader.groups()
        groups = [one.group_id for one in listed.value or ()]
        note = "" if len(groups) <= READERS_MAX else f"of the first {READERS_MAX:,} groups"
        seen = await self._reader.several_groups(groups[:READERS_MAX])
        return self._rendering.page(
            request,
            "topic.html",
            now=_oldest(listed, *seen.values()),
            title=f"{answer.value.topic}: groups",
            topic=answer.value.topic,
            tab="groups",
            problems=_problems(listed, *seen.values(), await self._hidden()),
            tables=[reader_table(answer.value.topic, seen, note)],
        )

    # -- records ------------------------------------------------------------------------

    async def records(self, request: Request) -> Response:
        answer = await self._topic(request)
        topic = answer.value
        if topic is None:
            return self._rendering.missing(request, answer.problem)
        given = dict(request.query_params)
        found, wanted, problems = Page((), 0), Wanted(), list[str]()
        try:
            wanted = parse_wanted(given, _time(given.get("since_ms", "")))
            found = await self._records.find(topic, wanted)
        except (PenstockError, TimeoutError) as error:
            problems = [reason_of(error)]
        return self._rendering.page(
            request,
            "records.html",
            title=f"{topic.topic}: records",
            topic=topic.topic,
            tab="records",
            wanted=wanted,
            given={name: given.get(name, "") for name in FIELDS},
            counts=COUNTS,
            forms=FORMS,
            partitions=len(topic.partitions),
            problems=[*problems, *found.skipped],
            records=found.records,
            note=page_note(found, wanted),
            empty="" if problems else empty_note(found, wanted, topic.topic),
        )

    async def record(self, request: Request) -> Response:
        where, offset = _where(request)
        form = _form(request.query_params.get("form", "auto"))
        topic = await self._topic(request)
        if topic.value is None:  # else the consumer would wait for the topic to appear
            return self._rendering.missing(request, topic.problem)
        try:
            found = await self._records.one(where, offset)
        except (PenstockError, TimeoutError) as error:
            return self._rendering.missing(request, reason_of(error))
        return self._rendering.page(
            request,
            "record.html",
            title=f"{where} at {offset}",
            topic=where.topic,
            tab="records",
            record=record_view(found, form, DETAIL_BYTES, compact=False),
            form=form,
            forms=FORMS,
            here=request.url.path,
        )

    async def raw(self, request: Request) -> Response:
        """A key or value as a file to save: no browser interprets it."""
        where, offset = _where(request)
        part = request.path_params["part"]
        topic = await self._topic(request)
        if topic.value is None:
            return self._rendering.missing(request, topic.problem)
        try:
            found = await self._records.one(where, offset)
        except (PenstockError, TimeoutError) as error:
            return self._rendering.missing(request, reason_of(error))
        data = {"key": found.key, "value": found.value}.get(part)
        if data is None:
            return self._rendering.missing(request, f"this record has no {part}"[:80])
        name = f"{where.topic}-{where.partition}-{offset}-{part}.bin"
        return Response(
            data,
            media_type="application/octet-stream",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    # -- groups -------------------------------------------------------------------------

    async def groups(self, request: Request) -> Response:
        answer = await self._reader.groups()
        sought = request.query_params.get("q", "")
        found = [one for one in answer.value or () if sought in one.group_id]
        shown, pager = page_of(request, found, GROUPS_SHOWN, {"q": sought})
        seen = await self._reader.several_groups(one.group_id for one in shown)
        hidden = await self._hidden()
        empty = (
            f"No group has {sought!r} in its id."
            if sought
            else _none("groups", hidden, "start one: penstock consume TOPIC --group NAME")
        )
        return self._rendering.page(
            request,
            "list.html",
            now=_oldest(answer, *seen.values()),
            title="Groups",
            problems=_problems(answer, *seen.values(), hidden),
            tables=[group_table(shown, seen, empty)] if answer.value is not None else [],
            pager=pager,
            search=sought,
        )

    async def group(self, request: Request) -> Response:
        group_id = request.query_params.get("id", "")
        answer: Answer[GroupAnswer] = await self._reader.group(group_id)
        found = answer.value
        if found is None:
            return self._rendering.missing(request, answer.problem)
        # What waits longest is what a reader of this page looks for.
        ordered = sorted(found.lags, key=lambda one: (-(found.lags[one].records or 0), one))
        shown, pager = page_of(request, ordered, PARTITIONS_SHOWN, {"id": group_id})
        tables: list[Table] = [member_table(found.seen), lag_table(found, shown)]
        if found.seen.pending:
            tables.insert(1, pending_table(found.seen))
        return self._rendering.page(
            request,
            "list.html",
            now=_oldest(answer),
            title=group_id,
            kind="Group",
            facts=group_facts(found),
            tables=tables,
            pager=pager,
        )

    # -- what all share -----------------------------------------------------------------

    async def _topic(self, request: Request) -> Answer[TopicDescription]:
        return await self._reader.topic(request.path_params["topic"])

    async def _hidden(self) -> Answer[Any]:
        """Its problem says why lists may lack what this user may not see."""
        cluster = await self._reader.cluster()
        return cluster if cluster.refused else Answer()


def _problems(*answers: Answer[Any]) -> list[str]:
    return list(dict.fromkeys(one.problem for one in answers if one.problem))[:5]


def _oldest(*answers: Answer[Any]) -> Cell:
    """As of when all of them count: some are kept for up to half a minute."""
    asked = [one.asked_ms for one in answers if one.asked_ms is not None]
    return cells.moment(min(asked, default=time_ns() // 1_000_000))


def _none(things: str, hidden: Answer[Any], how: str) -> str:
    """Why a list is empty."""
    if hidden.problem:
        return f"There are no {things} that you may see."
    return f"There are no {things}. To {how}"


def _where(request: Request) -> tuple[TopicPartition, int]:
    given = request.path_params
    return TopicPartition(given["topic"], given["partition"]), given["offset"]


def _time(text: str) -> int | None:
    """Milliseconds since 1970. Raises MisuseError."""
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(TIME_MAX_MS))
    if not is_number or int(text) > TIME_MAX_MS:
        raise MisuseError(f"since_ms is {text[:40]!r}; it must be milliseconds since 1970")
    return int(text)


def _form(text: str) -> Form:
    return next((one for one in FORMS if one == text), "auto")
