"""POST /v1/responses/compact: what comes back is short, keeps every word of the user that it must, and goes on."""

import asyncio

import pytest

from antiphon.core.deltas import Text, Thought
from antiphon.core.history.compaction import FIRST
from antiphon.core.prompt import ChatPrompt, Counts
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import Level
from antiphon.errors import BadRequest, ContextTooLong, EngineFailed, Unavailable
from antiphon.service.prompting.token_count import estimate
from tests.api.app import Client, api
from tests.api.compaction import Untold, assistant, compact, conversation, heard, kept, tokens, user, users_of
from tests.oracles.responses import check_response

pytestmark = pytest.mark.anyio


@pytest.mark.shows("A.11")
async def test_a_conversation_comes_back_as_the_user_s_messages_and_one_compaction() -> None:
    async with api() as server:
        server.engine.says(Text("They spoke "), Text("of the weather."))
        compacted = await compact(server, input=[user("I am Ada."), assistant("Hello Ada!"), user("Is it warm?")])
        assert [item["type"] for item in compacted["output"]] == ["message", "message", "compaction"]
        assert kept(compacted) == ["I am Ada.", "Is it warm?"]
        assert compacted["object"] == "response.compaction"
        assert compacted["usage"]["output_tokens"] > 0
        assert "weather" not in str(compacted)
        assert (await server.get(f"responses/{compacted['id']}")).status == 404, "nothing is kept"


async def test_tools_that_came_with_an_item_are_not_called_for_a_summary() -> None:
    found = {"type": "tool_search_output", "tools": [{"type": "function", "name": "look"}]}
    async with api() as server:
        compacted = await compact(server, input=[user("I am Ada."), found])
        assert compacted["output"][-1]["type"] == "compaction"


@pytest.mark.shows("A.11")
async def test_passed_back_it_restores_the_context_and_tells_nothing_twice() -> None:
    async with api() as server:
        server.engine.says(Text("Ada was greeted."))
        items = [{"role": "developer", "content": "Be kind."}, user("I am Ada."), assistant("Hello Ada!")]
        compacted = await compact(server, input=items)
        for before in ([], items, [items[0], assistant("made up")]):
            response = await server.create(input=[*before, *compacted["output"], user("Who am I?")])
            check_response(response)
            instructions = [("developer", "Be kind.")] if before else []
            assert heard(server.engine) == [
                *instructions,
                ("user", "I am Ada."),
                ("assistant", "[Summary of the conversation so far]\nAda was greeted."),
                ("user", "Who am I?"),
            ]


@pytest.mark.shows("A.11")
async def test_it_can_be_gone_on_with_by_previous_response_id_and_in_a_conversation() -> None:
    async with api() as server:
        server.engine.says(Text("Ada was greeted."))
        output = (await compact(server, input=[user("I am Ada."), assistant("Hello Ada!")]))["output"]
        first = await server.create(input=[*output, user("Who am I?")])
        await server.create(input="And you?", previous_response_id=first["id"])
        restored = heard(server.engine)
        assert [text for _, text in restored] == [
            "I am Ada.",
            "[Summary of the conversation so far]\nAda was greeted.",
            "Who am I?",
            "You said: Who am I?",
            "And you?",
        ]
        page = (await server.get(f"responses/{first['id']}/input_items?order=asc")).json()
        assert page["data"][1]["encrypted_content"] == output[-1]["encrypted_content"], "it is kept as it came"
        made = await server.made("conversations", {"items": [*output, user("Who am I?")]})
        await server.create(input="And you?", conversation=made["id"])
        assert heard(server.engine) == [*restored[:3], restored[4]]


@pytest.mark.shows("A.11")
async def test_what_came_before_is_compacted_by_previous_response_id_alone() -> None:
    async with api() as server:
        first = await server.create(input="I am Ada.")
        second = await server.create(input="Say more.", previous_response_id=first["id"])
        compacted = await compact(server, previous_response_id=second["id"])
        assert kept(compacted) == ["I am Ada.", "Say more."]
        order = heard(server.engine)[-1]
        assert order[0] == "user"
        assert "summary" in order[1]
        assert ("assistant", "You said: I am Ada.") in heard(server.engine)


@pytest.mark.shows("A.11")
@pytest.mark.parametrize("seed", range(12))
async def test_what_is_restored_has_at_most_a_quarter_of_the_tokens_that_it_replaces(seed: int) -> None:
    async with api() as server:
        items = conversation(seed)
        server.engine.says(Text("It was said and done. " * 400))
        compacted = await compact(server, input=items)
        before, after = await tokens(server, items), await tokens(server, compacted["output"])
        assert after <= before / 4
        told = kept(compacted)
        for said, text in zip(users_of(items), told, strict=True):
            assert text in (said, said[:FIRST])
        whole = [text == said for said, text in zip(users_of(items), told, strict=True) if len(said) > FIRST]
        assert any(whole)
        again = [*compacted["output"], *conversation(seed + 100, 3)]
        server.engine.says(Text("And on it went. " * 400))
        twice = await compact(server, input=again)
        assert await tokens(server, twice["output"]) <= await tokens(server, again) / 4
        assert [text[:FIRST] for text in kept(twice)] == [
            text[:FIRST] for text in [*told, *users_of(again)[len(told) :]]
        ]


@pytest.mark.parametrize("level", ["chat", "text", "tokens", "harmony"])
async def test_the_bound_holds_for_every_kind_of_prompt(level: Level) -> None:
    async with api(engine=FakeEngine(FakeSettings(level=level, context=60_000))) as server:
        items = [item for turn in range(40) for item in (user(f"{turn} ?"), assistant("so it is " * 60))]
        compacted = await compact(server, input=items)
        assert await tokens(server, compacted["output"]) <= await tokens(server, items) / 4
        assert kept(compacted) == users_of(items)


async def test_where_nobody_counts_the_bound_holds_by_the_estimate() -> None:
    async with api(engine=Untold()) as server:
        items = conversation(3)
        server.engine.says(Text("It was said and done. " * 400))
        compacted = await compact(server, input=items)
        sizes = []
        for given in (items, compacted["output"]):
            await server.create(input=given)
            sizes.append(estimate(server.engine.seen[-1].prompt))
        assert sizes[1] <= sizes[0] / 4


async def test_the_bound_holds_where_a_user_s_characters_are_worth_more_tokens_than_the_model_s() -> None:
    async with api(engine=Untold()) as server:
        items = [item for turn in range(9) for item in (user("春夏秋冬" * 100), assistant("so it is " * 900))]
        server.engine.says(Text("It was said and done. " * 900))
        output = (await compact(server, input=items))["output"]
        sizes = []
        for given in (items, output):
            await server.create(input=given)
            sizes.append(estimate(server.engine.seen[-1].prompt))
        assert sizes[0] / 5 < sizes[1] <= sizes[0] / 4


async def test_the_last_of_several_compactions_counts_and_each_is_looked_at() -> None:
    async with api() as server:
        server.engine.says(Text("Ada was greeted."))
        first = (await compact(server, input="I am Ada."))["output"]
        server.engine.says(Text("Ada was greeted twice."))
        second = (await compact(server, input=[*first, user("Hello?")]))["output"]
        await server.create(input=[*first, *second, user("Who am I?")])
        told = [text for _, text in heard(server.engine)]
        assert told == [
            "I am Ada.\n\nHello?",
            "[Summary of the conversation so far]\nAda was greeted twice.",
            "Who am I?",
        ]


async def test_a_short_conversation_keeps_its_messages_and_a_short_summary() -> None:
    async with api() as server:
        server.engine.says(Text("blah " * 400))
        compacted = await compact(server, input="hi")
        assert kept(compacted) == ["hi"]
        assert server.engine.seen[-1].sampling.max_tokens == 64
        assert await tokens(server, compacted["output"]) <= 64 + 36


async def test_words_of_a_user_that_are_more_than_a_quarter_are_kept_by_their_beginnings() -> None:
    async with api() as server:
        texts = [f"{n} " + "long words of a user " * 50 for n in range(20)]
        server.engine.says(Text("blah " * 400))
        compacted = await compact(server, input=[user(text) for text in texts])
        assert kept(compacted) == [text[:FIRST] for text in texts]
        await server.create(input=compacted["output"])
        assert "first 200 characters" in heard(server.engine)[1][1]


async def test_a_history_longer_than_the_context_is_compacted_too() -> None:
    async with api(engine=FakeEngine(FakeSettings(context=4000))) as server:
        items = conversation(1, 30)
        refused = await server.post("responses", {"model": "fake", "input": items})
        assert refused.error["code"] == "context_length_exceeded"
        compacted = await compact(server, input=items)
        assert len(kept(compacted)) == 30
        assert await tokens(server, compacted["output"]) < 4000


async def test_a_summary_has_its_room_though_the_history_fills_the_context() -> None:
    items = [item for turn in range(20) for item in (user(f"{turn}?"), assistant("so it is " * 30))]
    async with api() as server:
        size = await tokens(server, items)
    async with api(engine=FakeEngine(FakeSettings(context=size + 20))) as server:
        server.engine.says(Text("Much was said."))
        await compact(server, input=items)
        assert (server.engine.seen[-1].sampling.max_tokens or 0) > 100
        assert "19?" in str(heard(server.engine))


async def test_the_model_that_sums_up_is_offered_no_tools_and_does_not_think() -> None:
    async with api() as server:
        items = [{"type": "additional_tools", "tools": [{"type": "function", "name": "f"}]}, *conversation(2, 2)]
        await compact(server, input=items, instructions="Speak French.")
        work = server.engine.seen[-1]
        assert isinstance(work.prompt, ChatPrompt)
        assert (work.prompt.tools, work.effort) == ((), "none")
        assert heard(server.engine)[0] == ("system", "Speak French.")


async def test_a_call_without_an_output_can_be_answered_after_it() -> None:
    async with api() as server:
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
        compacted = await compact(server, input=[user("Look!"), call])
        output = {"type": "function_call_output", "call_id": "c", "output": "a tree"}
        await server.create(input=[*compacted["output"], output])
        assert heard(server.engine)[-1] == ("tool", "a tree")


async def test_a_model_that_fails_or_says_nothing_is_an_error() -> None:
    async with api() as server:
        for error, status in ((EngineFailed("It died."), 500), (Unavailable("It is not there."), 503)):
            server.engine.fails(error)
            answer = await server.post("responses/compact", {"model": "fake", "input": "hi"})
            assert (answer.status, answer.error["message"]) == (status, error.message)
        server.engine.says(Thought("hm"), finish="length")
        server.engine.says(Thought("hm"), Text("  "))
        answer = await server.post("responses/compact", {"model": "fake", "input": "hi"})
        assert (answer.status, answer.error["code"]) == (500, "server_error")
        assert server.engine.running == 0


async def test_a_model_that_thinks_whatever_it_is_told_is_asked_once_more_with_more_room() -> None:
    async with api() as server:
        server.engine.says(Thought("hm"), finish="length", counts=Counts(input_tokens=5, output_tokens=64))
        server.engine.says(Thought("hm"), Text("Fine."), counts=Counts(input_tokens=5, output_tokens=70))
        compacted = await compact(server, input="hi")
        assert [work.sampling.max_tokens for work in server.engine.seen] == [64, 64 + 1024]
        assert compacted["usage"]["output_tokens"] == 134


async def test_a_server_that_knows_no_effort_of_none_is_asked_without() -> None:
    async with api() as server:
        server.engine.fails(BadRequest("It refuses this request: reasoning_effort"))
        server.engine.says(Text("Fine."))
        await compact(server, input="hi")
        assert [work.effort for work in server.engine.seen] == ["none", None]
        server.engine.fails(ContextTooLong("It is too long."))
        answer = await server.post("responses/compact", {"model": "fake", "input": "hi"})
        assert answer.error["code"] == "context_length_exceeded"


async def test_a_client_that_leaves_ends_the_model_s_work() -> None:
    async with api() as server:
        gate = server.engine.holds()
        client = Client(server.app, "POST", "responses/compact", model="fake", input="hi")
        async with asyncio.timeout(30):
            await gate.reached.wait()
            client.leaves()
            await client.request
        assert (server.engine.running, server.engine.cancelled) == (0, 1)
