"""Numbers out of range, not finite, too long or not numbers at all: a 400 that names the field."""

import json
from typing import Any

import pytest

from drills.bombs.numbers import BEYOND, FLOATS, INTEGERS, NO_FLOATS, NO_INTEGERS, NO_JSON, UNBOUNDED, with_number
from tests.faults.raw_client import body, exchange, refused, request
from tests.support.server_process import Live

pytestmark = pytest.mark.anyio


def _with(field: str, literal: str) -> bytes:
    return request(with_number(field, literal))


@pytest.mark.parametrize("literal", NO_INTEGERS)
@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.shows("H6.7")
async def test_an_integer_out_of_bounds_is_refused_by_name(server: Live, field: str, literal: str) -> None:
    await refused(server.port, _with(field, literal), 400, param=field)


@pytest.mark.parametrize("literal", NO_FLOATS)
@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.shows("H6.7")
async def test_a_number_out_of_bounds_is_refused_by_name(server: Live, field: str, literal: str) -> None:
    if (field, literal) in UNBOUNDED:
        pytest.skip("has no upper bound")
    await refused(server.port, _with(field, literal), 400, param=field)


@pytest.mark.parametrize("literal", NO_JSON)
@pytest.mark.parametrize("field", ["temperature", "max_output_tokens"])
async def test_what_is_no_json_number_is_refused(server: Live, field: str, literal: str) -> None:
    await refused(server.port, _with(field, literal), 400)


@pytest.mark.parametrize(("field", "value"), BEYOND)
async def test_a_bound_is_where_it_is_said_to_be(server: Live, field: str, value: int) -> None:
    await refused(server.port, request(body(**{field: value})), 400, param=field)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 2},
        {"top_p": 1},
        {"top_p": 0},
        {"max_output_tokens": 1},
        {"n": 1},
        {"top_logprobs": 0},
        {"top_logprobs": 20, "include": ["message.output_text.logprobs"]},
        {"temperature": 1},
    ],
)
async def test_a_value_on_the_bound_is_taken(server: Live, fields: dict[str, Any]) -> None:
    answer = await exchange(server.port, request(body(**fields)))
    assert answer.status == 200, answer
    assert json.loads(answer.body)["object"] == "response"
