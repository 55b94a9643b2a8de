"""Each sampling field changes the token choice of the embedded model as its name says."""

from typing import Any

import pytest

from antiphon.core.prompt import Sampling
from antiphon.engines.base import Capabilities
from antiphon.engines.llamacpp.engine import LlamaCpp
from antiphon.engines.llamacpp.wire import SUPPORTED_FIELDS, UNSUPPORTED_REASONS
from antiphon.errors import UnsupportedParameter
from antiphon.service.planning.validation import reject_unsupported_by_engine
from tests.engines.llamacpp.generation import make_request, run_generation
from tests.protocol.decoding.requests import decode

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

UNSUPPORTED = {
    "best_of": 2, "length_penalty": 0.5, "num_assistant_tokens": 2, "assistant_confidence_threshold": 0.5,
    "max_ngram_size": 2,
}  # fmt: skip


async def generate_tokens(engine: LlamaCpp, **sampling: Any) -> list[int]:
    """Return the tokens of an answer."""
    answer = await run_generation(
        engine, make_request("Tell a story.", max_tokens=24, ignore_eos=True, seed=1, **sampling)
    )
    return [token for chunk in answer.chunks for token in chunk.tokens]


@pytest.mark.shows("C.11")
def test_fields_that_llama_cpp_lacks_are_rejected_by_name() -> None:
    # `beam` is not a field of requests: it selects an answer of `best_of`
    others = {"max_tokens", "beam"} | SUPPORTED_FIELDS | UNSUPPORTED_REASONS.keys()
    assert set(Sampling.__struct_fields__) - others == UNSUPPORTED.keys()
    for name, value in UNSUPPORTED.items():
        decoded = decode({"model": "small", "input": "hi", name: value})
        with pytest.raises(UnsupportedParameter) as refused:
            reject_unsupported_by_engine(
                decoded.request, decoded.sent, Capabilities(level="text", supported_fields=SUPPORTED_FIELDS), "llamacpp"
            )
        assert refused.value.param == name


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"min_p": 0.999}, {"top_p": 0.0001}], ids=str)
@pytest.mark.shows("C.11")
async def test_sampling_narrowed_to_one_token_is_greedy_at_any_temperature(
    engine: LlamaCpp, narrow: dict[str, Any]
) -> None:
    likeliest = await generate_tokens(engine, temperature=0.0)
    assert await generate_tokens(engine, temperature=2.0, **narrow) == likeliest
    assert await generate_tokens(engine, temperature=2.0, top_k=-1, min_p=0.0) != likeliest


@pytest.mark.parametrize(
    ("name", "against", "in_favour"),
    [("repetition_penalty", 2.0, 0.5), ("frequency_penalty", 2.0, -2.0), ("presence_penalty", 2.0, -2.0)],
)
@pytest.mark.shows("C.11")
async def test_a_penalty_makes_the_tokens_more_varied(
    engine: LlamaCpp, name: str, against: float, in_favour: float
) -> None:
    varied = await generate_tokens(engine, temperature=0.0, **{name: against})
    monotonous = await generate_tokens(engine, temperature=0.0, **{name: in_favour})
    assert len(set(varied)) > len(set(monotonous))
