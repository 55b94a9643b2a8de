"""What a gpt-oss model is told beside the chat, and how its answer begins where there is no choice left.

    free            <|start|>assistant                                              it thinks, calls or answers
    final           … <|channel|>final <|constrain|>json<|message|>                 it answers at once
    functions       … <|channel|>commentary to=functions                            it calls, and chooses what
    functions.f     … <|channel|>commentary to=functions.f <|constrain|>json<|message|>

A header that is written for the model holds on every engine, and a constraint on all that follows it is a constraint
on the answer alone; but the model does not think first. Where the engine takes a grammar of whole answers, it may.
"""

from datetime import date
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.harmony import FUNCTIONS
from antiphon.core.prompt import ChatPrompt, Constraint, Json, JsonObject, JsonSchema
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat
from antiphon.render.harmony.grammar import grammar, tag

Form = JsonSchemaFormat | JsonObjectFormat
Means = Literal["json", "lark", "tag"]  # constraints that an engine may take
Held = frozenset[Literal["calls", "form"]]  # tool_choice and strict tools; the format of the answer

EFFORTS: Final = {"none": "low", "minimal": "low", "low": "low", "medium": "medium"}  # it knows three; all else is high
IDENTITY: Final = "You are ChatGPT, a large language model trained by OpenAI."
CUTOFF: Final = "2024-06"
FINAL: Final = "final"
BUILTINS: Final = frozenset({"browser", "python"})  # what it is told of as it was trained
CALLS: Final[Held] = frozenset({"calls"})
FORM: Final[Held] = frozenset({"form"})
ALL: Final = CALLS | FORM  # there is nothing else that it could say


class Scene(Struct, frozen=True, kw_only=True):
    today: str
    effort: str = "medium"
    builtins: tuple[str, ...] = ()  # browser, python: what is declared and can be run
    form: Form | None = None
    all_turns: bool = False  # thoughts of turns that are over are told too
    identity: str = IDENTITY
    cutoff: str = CUTOFF
    opening: str = ""  # of the answer: see above


class Demand(Struct, frozen=True, kw_only=True):
    """How an answer must begin, and what it must be."""

    opening: str = ""
    constraint: Constraint | None = None
    held: Held = frozenset()  # to what it is held by that; the rest has to be looked at afterwards


def builtins_of(chat: ChatPrompt) -> tuple[str, ...]:
    """What it was trained to call by other names than functions have. Where it must call something, it is told of
    functions alone: their arguments can be held to a schema."""
    if chat.tool_choice != "auto":
        return ()
    return tuple(sorted({space for tool in chat.tools if (space := _space(chat, tool)) in BUILTINS}))


def without_builtins(chat: ChatPrompt) -> ChatPrompt:
    if not (spaces := builtins_of(chat)):
        return chat
    return replace(chat, tools=tuple([tool for tool in chat.tools if _space(chat, tool) not in spaces]))


def others_of(chat: ChatPrompt) -> tuple[str, ...]:
    """What else it may call by a name of its own: it was offered as a function, and is one."""
    return tuple(sorted({_space(chat, tool) for tool in chat.tools} - BUILTINS - {""}))


def _space(chat: ChatPrompt, tool: Json) -> str:
    return chat.recipients.get(tool["function"]["name"], "").partition(".")[0]


def set_scene(request: CreateResponse, today: date, demand: Demand, builtins: tuple[str, ...] = ()) -> Scene:
    effort = request.reasoning.effort
    form = request.text.format
    return Scene(
        today=today.isoformat(),
        effort="medium" if effort is None else EFFORTS.get(effort, "high"),
        builtins=builtins,
        form=form if isinstance(form, Form) else None,
        all_turns=request.reasoning.context == "all_turns",
        opening=demand.opening,
    )


def demanded(request: CreateResponse, chat: ChatPrompt, means: frozenset[Means], builtins: bool = False) -> Demand:
    """What `tool_choice`, `text.format` and an effort of none leave open. `means`: what the engine can hold it to."""
    form = request.text.format
    thinks = request.reasoning.effort != "none"
    if names := _to_call(chat):
        return _calling(names, chat, means, thinks)
    if isinstance(form, Form) and not builtins:  # what builtin tools are told is no JSON
        return _answering(form, chat, means, thinks)
    if not builtins and any(_is_strict(tool) for tool in chat.tools):
        return _choosing(chat, means, thinks)
    return Demand() if thinks or chat.tools or builtins else Demand(opening=FINAL)


def _to_call(chat: ChatPrompt) -> list[str]:
    """The names of which it has to call one; none if it need not."""
    if isinstance(chat.tool_choice, dict):
        return [chat.tool_choice["function"]["name"]]
    return [tool["function"]["name"] for tool in chat.tools] if chat.tool_choice == "required" else []


def _calling(names: list[str], chat: ChatPrompt, means: frozenset[Means], thinks: bool) -> Demand:
    tools = [tool for tool in chat.tools if tool["function"]["name"] in names]
    if "tag" in means:
        return Demand(constraint=tag(tools, None, answers=False, thinks=thinks), held=ALL)
    if "lark" in means:
        return Demand(constraint=grammar(tools, None, answers=False, thinks=thinks), held=ALL)
    if len(names) > 1:
        return Demand(opening=FUNCTIONS)
    opening, function = f"{FUNCTIONS}.{names[0]}", tools[0]["function"]
    if "json" not in means:
        return Demand(opening=opening)
    made = JsonSchema(schema=function["parameters"], name=names[0], strict=_is_strict(tools[0]))
    return Demand(opening=opening, constraint=made, held=ALL)


def _answering(form: Form, chat: ChatPrompt, means: frozenset[Means], thinks: bool) -> Demand:
    schema = form.schema if isinstance(form, JsonSchemaFormat) else {"type": "object"}
    if "tag" in means:
        return Demand(constraint=tag(chat.tools, schema, thinks=thinks), held=ALL)
    if "lark" in means:
        return Demand(constraint=grammar(chat.tools, schema, thinks=thinks), held=ALL)
    if chat.tools or "json" not in means:
        return Demand()
    if isinstance(form, JsonObjectFormat):
        return Demand(opening=FINAL, constraint=JsonObject(), held=FORM)
    made = JsonSchema(schema=schema, name=form.name, strict=form.strict is not False)
    return Demand(opening=FINAL, constraint=made, held=FORM)


def _choosing(chat: ChatPrompt, means: frozenset[Means], thinks: bool) -> Demand:
    """It calls or answers; if it calls a strict tool, as that one wants it."""
    tools = [tool if _is_strict(tool) else _loosened(tool) for tool in chat.tools]
    if "tag" in means:
        return Demand(constraint=tag(tools, None, thinks=thinks), held=CALLS)
    if "lark" in means:
        return Demand(constraint=grammar(tools, None, thinks=thinks), held=CALLS)
    return Demand()


def _is_strict(tool: Json) -> bool:
    return tool["function"].get("strict") is True


def _loosened(tool: Json) -> Json:
    return {**tool, "function": {**tool["function"], "parameters": {"type": "object"}}}
