"""Instructions of a request: where the model receives them, and that they end with the response."""

import pytest

from tests.api.app import run_api

pytestmark = pytest.mark.anyio


@pytest.mark.shows("A.25")
async def test_instructions_are_not_carried_over_from_a_previous_response() -> None:
    async with run_api() as server:
        first = await server.create(input="Hello.", instructions="Answer in Latin.")
        assert "Answer in Latin." in repr(server.engine.seen[-1].prompt)
        second = await server.create(input="And now?", previous_response_id=first["id"])
        assert second["instructions"] is None
        prompt = repr(server.engine.seen[-1].prompt)
        assert "Hello." in prompt
        assert "Latin" not in prompt
        await server.create(input="Then?", previous_response_id=second["id"], instructions="Answer in Greek.")
        assert "Answer in Greek." in repr(server.engine.seen[-1].prompt)
