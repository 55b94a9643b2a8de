"""The search that a tool or a request declares."""

from antiphon.core.file_search import make_request
from antiphon.protocol.types.tools import HybridWeights, RankingOptions


def test_without_weights_meaning_and_words_count_the_same() -> None:
    request = make_request(["vs_1"], ["otters"], 5, None, RankingOptions())
    assert request.embedding_weight == request.text_weight == 1.0
    assert (request.stores, request.queries, request.max_results) == (["vs_1"], ["otters"], 5)


def test_the_weights_and_the_threshold_of_the_ranking_options_are_used() -> None:
    weights = HybridWeights(embedding_weight=0.2, text_weight=0.8)
    ranking = RankingOptions(hybrid_search=weights, score_threshold=0.4, ranker="none")
    request = make_request(["vs_1"], ["otters"], 5, None, ranking)
    assert (request.embedding_weight, request.text_weight) == (0.2, 0.8)
    assert (request.score_threshold, request.ranker) == (0.4, "none")
