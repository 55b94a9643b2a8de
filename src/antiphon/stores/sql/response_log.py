"""Lists of responses without their contents: from columns that are read without the rows' large values.

A filtered list searches a bounded number of rows for each page. Running responses are found by their own index, however
many others there are.
"""

from collections.abc import Sequence
from typing import Any

from antiphon.stores.base import RUNNING_STATUSES, SummaryFilter, SummaryPage, SummaryRow
from antiphon.stores.sql.operation import AFTER_LAST, Operation, Rows, direction, sanitise_id, sql, start_id
from antiphon.stores.sql.responses import WALK_IDS

_COLUMNS = "id, status, background, created, ended, previous, conversation, model, summary"
_LISTED = f"SELECT {_COLUMNS} FROM responses WHERE tenant = $1 AND hidden = 0 AND (expires IS NULL OR expires > $2)"
_RUNNING_IDS = "SELECT id FROM responses WHERE tenant = $1 AND ended IS NULL LIMIT $2"

_MAX_SEARCHED = 5000  # rows that one page of a filtered list searches
_BATCH_SIZE = 64  # ids of one statement, padded with "", so that the database prepares one statement
_BATCH = f"({', '.join(f'${n + 3}' for n in range(_BATCH_SIZE))})"
_BY_IDS = f"{_LISTED} AND id IN {_BATCH}"

# Some responses and those that continue them, level by level: no more rows are read than the limit. CROSS JOIN fixes
# the join order in SQLite, as in `responses.chain`.
_DESCENDANTS = f"""
WITH RECURSIVE walk (id) AS (
    SELECT id FROM responses WHERE tenant = $1 AND id IN {_BATCH}
    UNION ALL
    SELECT r.id FROM walk CROSS JOIN responses r WHERE r.tenant = $1 AND r.previous = walk.id
)
SELECT id FROM walk LIMIT $2
"""
_IN_CONVERSATION = f"""
SELECT id FROM ({_LISTED} AND id < $3 ORDER BY id DESC LIMIT $4) AS searched WHERE conversation = $5 LIMIT $6
"""


def page_summaries(
    now: float, tenant: str, after: str | None, limit: int, descending: bool, wanted: SummaryFilter
) -> Operation[SummaryPage]:
    """Return a page, ordered by creation. Raises InvalidValue(param="after") like `page_responses`."""
    start = yield from start_id("responses", tenant, after, descending)
    if wanted.statuses and wanted.statuses.issubset(RUNNING_STATUSES):
        return (yield from _page_running(now, tenant, start, limit, descending, wanted))
    comparison, order = direction(descending)
    searched = f"{_LISTED} AND id {comparison} $3 ORDER BY id {order} LIMIT $4"
    condition, values = _render_filter(wanted, 6)
    text = f"SELECT {_COLUMNS} FROM ({searched}) AS searched {condition} ORDER BY id {order} LIMIT $5"
    depth = _MAX_SEARCHED if condition else limit + 1
    rows = yield sql(text, tenant, now, start, depth, limit + 1, *values)
    if len(rows) > limit:
        return SummaryPage([*map(_to_row, rows[:limit])], rows[limit - 1][0])
    edge: Rows = []
    if condition:
        edge = yield sql(f"SELECT id FROM ({searched} OFFSET $5) AS searched", tenant, now, start, 1, _MAX_SEARCHED - 1)
    return SummaryPage([*map(_to_row, rows)], edge[0][0] if edge else None)


def find_summaries(now: float, tenant: str, ids: Sequence[str]) -> Operation[list[SummaryRow]]:
    """Return the responses that exist among these ids, in any order."""
    found: list[SummaryRow] = []
    names = [sanitise_id(name) for name in ids]
    for at in range(0, len(names), _BATCH_SIZE):
        batch = names[at : at + _BATCH_SIZE]
        rows = yield sql(_BY_IDS, tenant, now, *batch, *[""] * (_BATCH_SIZE - len(batch)))
        found += map(_to_row, rows)
    return found


def find_tree(now: float, tenant: str, response_id: str, limit: int) -> Operation[tuple[list[SummaryRow], bool]]:
    """Return the responses that this one is connected with, in the order of their creation, and whether some are
    missing: those that it continues, those of their conversation, and all that continue any of these.

    Empty if the response is unknown. Deleted responses are not part of it, but their descendants are.
    """
    if not (yield from find_summaries(now, tenant, [response_id])):
        return [], False
    path = sorted((yield sql(WALK_IDS, tenant, response_id, limit // 2)))
    ids = dict.fromkeys([name for _, name, _ in path])
    roots = [path[-1][1]]
    top = yield from find_summaries(now, tenant, roots)
    if top and top[0].conversation is not None:
        found = yield sql(_IN_CONVERSATION, tenant, now, AFTER_LAST, _MAX_SEARCHED, top[0].conversation, limit)
        roots = sorted({*roots, *[name for (name,) in found]}, reverse=True)
    for at in range(0, len(roots), _BATCH_SIZE):
        batch = roots[at : at + _BATCH_SIZE]
        padding = [""] * (_BATCH_SIZE - len(batch))
        ids |= dict.fromkeys([name for (name,) in (yield sql(_DESCENDANTS, tenant, limit + 1, *batch, *padding))])
    rows = yield from find_summaries(now, tenant, [*ids][:limit])
    return sorted(rows, key=lambda row: (row.created, row.id)), len(ids) > limit or (
        len(path) == limit // 2 and path[-1][2] is not None
    )


def _page_running(
    now: float, tenant: str, start: str, limit: int, descending: bool, wanted: SummaryFilter
) -> Operation[SummaryPage]:
    ids = sorted([row[0] for row in (yield sql(_RUNNING_IDS, tenant, _MAX_SEARCHED))], reverse=descending)
    ids = [name for name in ids if (name < start if descending else name > start)]
    found: list[SummaryRow] = []
    for at in range(0, len(ids), _BATCH_SIZE):
        rows = yield from find_summaries(now, tenant, ids[at : at + _BATCH_SIZE])
        found += sorted([row for row in rows if _is_wanted(row, wanted)], key=lambda row: row.id, reverse=descending)
        if len(found) > limit:
            return SummaryPage(found[:limit], found[limit - 1].id)
    return SummaryPage(found, None)


def _is_wanted(row: SummaryRow, wanted: SummaryFilter) -> bool:
    return (
        row.status in wanted.statuses
        and wanted.model in (None, row.model)
        and wanted.background in (None, row.background)
    )


def _render_filter(wanted: SummaryFilter, first: int) -> tuple[str, list[Any]]:
    """Return the condition, whose parameters begin with `$first`, and its values."""
    statuses = sorted(wanted.statuses)
    terms = [f"status IN ({', '.join(f'${first + n}' for n in range(len(statuses)))})"] if statuses else []
    values: list[Any] = [*statuses]
    for column, value in (("model", wanted.model), ("background", wanted.background)):
        if value is not None:
            terms.append(f"{column} = ${first + len(values)}")
            values.append(int(value) if isinstance(value, bool) else value.replace("\0", "\ufffd"))
    return f"WHERE {' AND '.join(terms)}" if terms else "", values


def _to_row(row: tuple[Any, ...]) -> SummaryRow:
    name, status, background, *others = row
    return SummaryRow(name, status, bool(background), *others)
