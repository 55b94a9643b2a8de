"""Each sampling field does to the embedded model's choice of tokens what its name says."""

from typing import Any

import pytest

from antiphon.core.prompt import Sampling
from antiphon.engines.base import Capabilities
from antiphon.engines.llamacpp.engine import LlamaCpp
from antiphon.engines.llamacpp.wire import HONOURS, LACKS
from antiphon.errors import UnsupportedParameter
from antiphon.service.planning.validation import refuse_unhonoured
from tests.engines.llamacpp.generation import ask, work
from tests.protocol.decoding.requests import decode

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

LACKING = {
    "best_of": 2, "length_penalty": 0.5, "num_assistant_tokens": 2, "assistant_confidence_threshold": 0.5,
    "max_ngram_size": 2,
}  # fmt: skip


async def said(engine: LlamaCpp, **sampling: Any) -> list[int]:
    """The tokens of an answer."""
    answer = await ask(engine, work("Tell a story.", max_tokens=24, ignore_eos=True, seed=1, **sampling))
    return [token for chunk in answer.chunks for token in chunk.tokens]


@pytest.mark.shows("C.11")
def test_what_llama_cpp_lacks_is_refused_by_name_and_all_else_is_honoured() -> None:
    assert set(Sampling.__struct_fields__) - {"max_tokens"} - HONOURS - LACKS.keys() == LACKING.keys()
    for name, value in LACKING.items():
        asked = decode({"model": "small", "input": "hi", name: value})
        with pytest.raises(UnsupportedParameter) as refused:
            refuse_unhonoured(asked.request, asked.sent, Capabilities(prompt="text", honours=HONOURS), "llamacpp")
        assert refused.value.param == name


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"min_p": 0.999}, {"top_p": 0.0001}], ids=str)
@pytest.mark.shows("C.11")
async def test_a_choice_narrowed_to_one_token_is_the_likeliest_however_hot(
    engine: LlamaCpp, narrow: dict[str, Any]
) -> None:
    likeliest = await said(engine, temperature=0.0)
    assert await said(engine, temperature=2.0, **narrow) == likeliest
    assert await said(engine, temperature=2.0, top_k=-1, min_p=0.0) != likeliest


@pytest.mark.parametrize(
    ("name", "against", "in_favour"),
    [("repetition_penalty", 2.0, 0.5), ("frequency_penalty", 2.0, -2.0), ("presence_penalty", 2.0, -2.0)],
)
@pytest.mark.shows("C.11")
async def test_a_penalty_leads_away_from_what_was_said_before(
    engine: LlamaCpp, name: str, against: float, in_favour: float
) -> None:
    varied = await said(engine, temperature=0.0, **{name: against})
    monotonous = await said(engine, temperature=0.0, **{name: in_favour})
    assert len(set(varied)) > len(set(monotonous))
