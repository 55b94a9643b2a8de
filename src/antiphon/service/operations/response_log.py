"""The list of a tenant's stored responses without their contents."""

from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.ids import is_id, quote_id
from antiphon.protocol.types.operations.activity import ResponseSummary, SummaryList, SummaryQuery
from antiphon.service.persistence.response_summary import to_response_summary
from antiphon.service.persistence.rows import unknown_response_error
from antiphon.service.persistence.stored_responses import check_store_enabled
from antiphon.stores.base import SummaryFilter
from antiphon.stores.sql.store import Store


class ResponseLog(Struct, frozen=True, eq=False):
    _store: Store
    _store_enabled: bool = True

    def check_enabled(self) -> None:
        check_store_enabled(self._store_enabled)

    async def list_summaries(self, tenant: str, query: SummaryQuery) -> SummaryList:
        check_store_enabled(self._store_enabled)
        if query.after is not None and not is_id(query.after, "resp"):
            raise InvalidValue(f"There is no response {quote_id(query.after)} in this list.", param="after")
        wanted = SummaryFilter(statuses=frozenset(query.status), model=query.model, background=query.background)
        page = await self._store.page_summaries(tenant, query.after, query.limit, query.order == "desc", wanted)
        return SummaryList.make(map(to_response_summary, page.rows), page.next_after is not None, page.next_after)

    async def find(self, tenant: str, response_id: str) -> ResponseSummary:
        check_store_enabled(self._store_enabled)
        found = await self._store.find_summaries(tenant, [response_id]) if is_id(response_id, "resp") else []
        if not found:
            raise unknown_response_error(response_id)
        return to_response_summary(found[0])
