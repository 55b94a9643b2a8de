"""A conversation that runs under drill are part of: each turn is in it as one block, once, or not at all."""

from itertools import pairwise

from drills.harness.client import GONE, Client
from drills.harness.runs import Run

_MOST = 100  # items of a page


async def begin(client: Client) -> str:
    """Its id, or "" if there is nobody left to make it."""
    try:
        answer = await client.post({}, "/v1/conversations")
    except GONE:
        return ""
    return str(answer.json()["id"]) if answer.status == 200 else ""


async def look(client: Client, conversation_id: str, runs: list[Run]) -> list[str]:
    if not conversation_id:
        return []
    answer = await client.get(f"/v1/conversations/{conversation_id}/items?order=asc&limit={_MOST}")
    if answer.status != 200:
        return [f"the conversation {conversation_id} was acknowledged and is lost: {answer.body[:200]!r}"]
    items = answer.json()["data"]
    turns = [(_nonce_of(item, runs), item["role"]) for item in items if item["type"] == "message"]
    return [sentence for run in runs if run.ended and (sentence := _turn(run, turns))]


def _nonce_of(item: dict[str, object], runs: list[Run]) -> str:
    said = str(item["content"])
    return next((run.nonce for run in runs if run.nonce in said), "")


def _turn(run: Run, turns: list[tuple[str, str]]) -> str:
    """What was asked and what was answered stand side by side, and nowhere else."""
    assert run.ended is not None
    places = [at for at, (nonce, _) in enumerate(turns) if nonce == run.nonce]
    roles = [turns[at][1] for at in places]
    side_by_side = all(later - earlier == 1 for earlier, later in pairwise(places))
    if run.ended["status"] == "completed":
        whole = roles == ["user", "assistant"] and side_by_side
    else:
        whole = roles in ([], ["user"], ["user", "assistant"]) and side_by_side
    return "" if whole else f"{run.kind} {run.id} ({run.ended['status']}) is in its conversation as {roles} at {places}"
