"""Moderation of a run with several turns: each is judged before anything of it is emitted or run."""

import asyncio

import pytest
from msgspec.structs import replace

from antiphon.agent.moderation import ModerationPlan
from antiphon.agent.run import MultiTurn, Run
from antiphon.core.deltas import Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.replay import Replay, reset_response
from antiphon.engines.fake import FakeEngine
from antiphon.errors import EngineFailed
from antiphon.ids import ItemIds
from antiphon.protocol.bodies.moderations import make_judgement, merge_judgements
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.response import ModerationFailure, ModerationResult, Response
from tests.agent.run_endings import EndLog
from tests.agent.test_tool_loop import ID, make_call
from tests.agent.turn_policies import ScriptedTurnPolicy
from tests.oracles.fold import fold_events

pytestmark = pytest.mark.anyio


class Judge:
    """Flags every text with the word «bad», and fails for the word «broken»."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def judge_input(self) -> ModerationResult:
        return await self.judge_output("the input")

    async def judge_output(self, text: str) -> ModerationResult:
        self.texts.append(text)
        if "broken" in text:
            raise EngineFailed("It is broken.")
        score = 1.0 if "bad" in text else 0.0
        judged = make_judgement({"violence": score}, {"violence": score > 0}, frozenset({"text"}))
        return merge_judgements("judge", [judged])


async def run_moderated(policy: ScriptedTurnPolicy, judge: Judge, blocks: bool) -> Run:
    """Run to the end. The events are those that a replay of the log gives."""
    plan = ModerationPlan(
        judge_input=judge.judge_input, judge_output=judge.judge_output, blocks_input=blocks, blocks_output=blocks
    )
    emitter = Emitter(Response(id=ID, created_at=1, model="fake"), ItemIds(ID), log=[])
    first = replace(policy.make_first_call(), moderation=plan)
    run = Run(first, emitter, EndLog(), None, MultiTurn(policy=policy))
    received: list[Event] = []
    async with asyncio.timeout(30):
        await run.drive(received.extend)
    assert fold_events(received) == run.response
    replay = Replay(reset_response(run.response), False)
    replayed = replay.open() + replay.feed([entry for entries in run.log for entry in entries])
    assert replayed == received
    return run


async def test_a_flagged_turn_is_blocked_and_its_tool_calls_are_not_run(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add", '{"a": 1}'))
    engine.says(Text("And now: "), *make_call(0, "srv__add", '{"bad": 1}'))
    policy, judge = ScriptedTurnPolicy(engine), Judge()
    run = await run_moderated(policy, judge, blocks=True)
    assert [call.arguments for call in policy.add_tool.calls] == ['{"a": 1}']
    assert judge.texts == ["the input", '{"a": 1}', 'And now: {"bad": 1}']
    assert len(run.response.output) == 1  # the call of the first turn
    assert run.response.incomplete_details is not None
    assert run.response.incomplete_details.reason == "content_filter"


async def test_the_highest_scores_of_all_turns_are_reported(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add", '{"bad": 1}'))
    engine.says(Text("Done."))
    run = await run_moderated(ScriptedTurnPolicy(engine), Judge(), blocks=False)
    assert run.response.status == "completed"
    assert run.response.moderation
    assert isinstance(run.response.moderation.output, ModerationResult)
    assert run.response.moderation.output.category_scores["violence"] == 1.0


async def test_a_turn_that_cannot_be_judged_is_reported_or_fails_the_run(engine: FakeEngine) -> None:
    engine.says(Text("broken"))
    engine.repeats()
    scored = await run_moderated(ScriptedTurnPolicy(engine), Judge(), blocks=False)
    blocked = await run_moderated(ScriptedTurnPolicy(engine), Judge(), blocks=True)
    assert scored.response.moderation
    assert scored.response.moderation.output == ModerationFailure(code="server_error", message="It is broken.")
    assert (blocked.response.status, blocked.response.output) == ("failed", [])
    assert blocked.response.error is not None
    assert blocked.response.error.message == "It is broken."
