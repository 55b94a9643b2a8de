"""A conversation of runs under drill: each turn is in it as one block, exactly once or not at all."""

from itertools import pairwise

from drills.harness.client import DISCONNECT_ERRORS, Client
from drills.harness.runs import Run

_PAGE_LIMIT = 100  # items per page


async def create_conversation(client: Client) -> str:
    """Create a conversation and return its id, or "" if no server is available."""
    try:
        answer = await client.post({}, "/v1/conversations")
    except DISCONNECT_ERRORS:
        return ""
    return str(answer.json()["id"]) if answer.status == 200 else ""


async def verify_conversation(client: Client, conversation_id: str, runs: list[Run]) -> list[str]:
    """Verify that every ended run is a consistent turn of the conversation; returns violations."""
    if not conversation_id:
        return []
    answer = await client.get(f"/v1/conversations/{conversation_id}/items?order=asc&limit={_PAGE_LIMIT}")
    if answer.status != 200:
        return [f"the conversation {conversation_id} was acknowledged and is lost: {answer.body[:200]!r}"]
    items = answer.json()["data"]
    turns = [(_find_nonce(item, runs), item["role"]) for item in items if item["type"] == "message"]
    return [sentence for run in runs if run.ended and (sentence := _verify_turn(run, turns))]


def _find_nonce(item: dict[str, object], runs: list[Run]) -> str:
    content = str(item["content"])
    return next((run.nonce for run in runs if run.nonce in content), "")


def _verify_turn(run: Run, turns: list[tuple[str, str]]) -> str:
    """Input and output of a turn must be adjacent and must not occur elsewhere."""
    assert run.ended is not None
    positions = [at for at, (nonce, _) in enumerate(turns) if nonce == run.nonce]
    roles = [turns[at][1] for at in positions]
    side_by_side = all(later - earlier == 1 for earlier, later in pairwise(positions))
    if run.ended["status"] == "completed":
        is_consistent = roles == ["user", "assistant"] and side_by_side
    else:
        is_consistent = roles in ([], ["user"], ["user", "assistant"]) and side_by_side
    return (
        ""
        if is_consistent
        else f"{run.kind} {run.id} ({run.ended['status']}) has in its conversation the roles {roles} at {positions}"
    )
