"""Rewrites questions into search queries with a model of the server.

The model is called like that of any other request: it waits for a slot, and its tokens are charged to the caller. A
failure is raised: the client asked for another query, and can search for its own without the model.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from antiphon.core.dialects.dialect import PlainTextEmitter
from antiphon.core.history.compaction import user_message
from antiphon.errors import BadRequest, EngineFailed, NotFound, UnsupportedParameter
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.items import Message
from antiphon.protocol.types.parts import OutputText
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ReasoningConfig
from antiphon.service.completions import Completions
from antiphon.service.engine_tasks import EngineTasks, TaskTarget
from antiphon.service.planning.planner import Planner

FIELD: Final = "rewrite_query"
_SECONDS: Final = 30.0  # for all queries of a search
_QUERY_TOKENS, _REASONING_TOKENS = 128, 1024  # output tokens; the second number for models that reason anyway
_MAX_CHARS: Final = 1000  # of a query
_INSTRUCTIONS: Final = (
    "Turn each message of the user into a short query for a search engine. Keep its language and all names. Do not "
    "answer it. Write nothing but the query."
)
_EXAMPLES: Final = (  # small models need them
    ("Hello! Could you tell me how tall the Eiffel Tower is?", "height of the Eiffel Tower"),
    ("I would like to know who invented the telephone, and when.", "inventor of the telephone, year"),
    ("Which documents does my colleague need to rent a car in Spain?", "documents needed to rent a car in Spain"),
)
_SENT: Final = frozenset({"model", "input", "instructions", "max_output_tokens", "temperature", "reasoning"})


class QueryRewriter:
    def __init__(self, tasks: EngineTasks, planner: Planner, completions: Completions, model: str | None) -> None:
        """`model`: the model of the settings; None: the first one that generates."""
        self._tasks = tasks
        self._planner = planner
        self._completions = completions
        self._model = model

    async def rewrite(self, tenant: str, queries: Sequence[str]) -> list[str]:
        """Return a search query for each question.

        Raises UnsupportedParameter without a model, the errors of its engine, and EngineFailed after the deadline.
        """
        try:
            async with asyncio.timeout(_SECONDS):
                target = await self._find_model()
                return [await self._rewrite(tenant, target, query) for query in queries]
        except TimeoutError:
            raise EngineFailed(f"The model did not rewrite the query within {_SECONDS:.0f} seconds.") from None
        except BadRequest as error:
            error.param = FIELD
            raise

    async def _find_model(self) -> TaskTarget:
        try:
            return await self._tasks.find(self._model, "generate")
        except NotFound as error:
            raise UnsupportedParameter(
                f"'{FIELD}' requires a model that generates, which the server's operator names with --rewrite-model. "
                f"{error.message}"
            ) from None

    async def _rewrite(self, tenant: str, target: TaskTarget, query: str) -> str:
        """Rewrite one query. Some servers reject the effort "none", and some models reason nevertheless: then the
        model is called again, with more tokens.
        """
        takes_effort = "reasoning.effort" in target.capabilities.supported_fields
        first = ReasoningConfig(effort="none" if takes_effort else None)
        for reasoning, tokens in ((first, _QUERY_TOKENS), (ReasoningConfig(), _REASONING_TOKENS)):
            try:
                text = await self._generate(tenant, _make_request(target, query, reasoning, tokens))
            except BadRequest:
                if reasoning.effort is None:
                    raise
                continue
            if rewritten := _extract_query(text):
                return rewritten
        raise EngineFailed(f"The model '{target.served.name}' returned no query.")

    async def _generate(self, tenant: str, request: CreateResponse) -> str:
        prepared = await self._planner.plan(tenant, DecodedRequest(request, _SENT, []))
        run, _ = self._completions.open([prepared], PlainTextEmitter())
        return (await run.fold_text()).text


def _make_request(target: TaskTarget, query: str, reasoning: ReasoningConfig, tokens: int) -> CreateResponse:
    takes_temperature = "temperature" in target.capabilities.supported_fields
    examples = [item for question, answer in _EXAMPLES for item in (user_message(question), _assistant_message(answer))]
    return CreateResponse(
        model=target.served.name,
        instructions=_INSTRUCTIONS,
        input=[*examples, user_message(query)],
        tool_choice="none",
        temperature=0.0 if takes_temperature else None,
        max_output_tokens=tokens,
        reasoning=reasoning,
        store=False,
    )


def _assistant_message(text: str) -> Message:
    return Message(role="assistant", content=[OutputText(text=text)])


def _extract_query(text: str) -> str:
    """Return the first line of an answer without quotation marks, which small models add."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return first.strip().strip("\"'`“”„«»").strip()[:_MAX_CHARS]
