"""Numbers that are out of range, not finite, too long or not numbers at all get a 400 that names the field."""

import json
from itertools import product
from typing import Any

import pytest

from drills.bombs.numbers import (
    BAD_FLOATS,
    BAD_INTEGERS,
    BAD_JSON_NUMBERS,
    FLOATS,
    INTEGERS,
    OUT_OF_RANGE,
    UNBOUNDED,
    add_number,
)
from tests.faults.raw_client import build_body, build_request, expect_error, send_request
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.anyio


def _build_number_request(field: str, literal: str) -> bytes:
    return build_request(add_number(field, literal))


@pytest.mark.parametrize("literal", BAD_INTEGERS)
@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.shows("H6.7")
async def test_an_integer_out_of_range_is_rejected_with_its_name(
    server: ServerProcess, field: str, literal: str
) -> None:
    await expect_error(server.port, _build_number_request(field, literal), 400, param=field)


@pytest.mark.parametrize(("field", "literal"), [pair for pair in product(FLOATS, BAD_FLOATS) if pair not in UNBOUNDED])
@pytest.mark.shows("H6.7")
async def test_a_float_out_of_range_is_rejected_with_its_name(server: ServerProcess, field: str, literal: str) -> None:
    await expect_error(server.port, _build_number_request(field, literal), 400, param=field)


@pytest.mark.parametrize("literal", BAD_JSON_NUMBERS)
@pytest.mark.parametrize("field", ["temperature", "max_output_tokens"])
async def test_an_invalid_json_number_is_rejected(server: ServerProcess, field: str, literal: str) -> None:
    await expect_error(server.port, _build_number_request(field, literal), 400)


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
async def test_a_value_just_beyond_its_bound_is_rejected(server: ServerProcess, field: str, value: int) -> None:
    await expect_error(server.port, build_request(build_body(**{field: value})), 400, param=field)


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
async def test_a_value_on_the_bound_is_accepted(server: ServerProcess, fields: dict[str, Any]) -> None:
    answer = await send_request(server.port, build_request(build_body(**fields)))
    assert answer.status == 200, answer
    assert json.loads(answer.body)["object"] == "response"
