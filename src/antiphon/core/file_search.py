"""A search in vector stores and its hits, as the file_search tool and the search endpoint state them."""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.protocol.types.filters import Attributes, Filter
from antiphon.protocol.types.tools import HybridWeights, Ranker, RankingOptions


class SearchRequest(Struct, frozen=True, kw_only=True):
    stores: Sequence[str]  # ids; their hits are ranked together
    queries: Sequence[str]  # the ranked lists of all queries are fused
    max_results: int = 10
    filters: Filter | None = None
    ranker: Ranker = "auto"
    score_threshold: float = 0.0
    embedding_weight: float = 1.0
    text_weight: float = 1.0


def make_request(
    stores: Sequence[str], queries: Sequence[str], max_results: int, filters: Filter | None, ranking: RankingOptions
) -> SearchRequest:
    """Return the search that a tool or a request declares. Without weights, meaning and words count the same."""
    weights = ranking.hybrid_search or HybridWeights(embedding_weight=1.0, text_weight=1.0)
    return SearchRequest(
        stores=stores,
        queries=queries,
        max_results=max_results,
        filters=filters,
        ranker=ranking.ranker,
        score_threshold=ranking.score_threshold,
        embedding_weight=weights.embedding_weight,
        text_weight=weights.text_weight,
    )


class SearchHit(Struct, frozen=True, kw_only=True):
    """A chunk of a file that fits a search."""

    file_id: str
    filename: str
    score: float  # from 0 to 1
    attributes: Attributes
    text: str
