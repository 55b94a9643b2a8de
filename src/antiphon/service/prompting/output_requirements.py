"""What a request insists on, of what its engine does not see to by itself; and how a model is asked again."""

import asyncio
from collections.abc import Iterator
from datetime import datetime

from msgspec.structs import replace

from antiphon.agent.output_rules import Form, Key, Misfit, Rules, ToolRule
from antiphon.core.prompt import ChatPrompt, Json, Prompt
from antiphon.errors import BadRequest, InvalidValue
from antiphon.parsers.base import Parser
from antiphon.parsers.calls.grammar import without_lookaround
from antiphon.parsers.registry import load_parser
from antiphon.protocol.schemas.grammars import knows_lark, unreadable
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat, TextFormat
from antiphon.protocol.types.tools import CustomTool
from antiphon.render.messages import Rendered
from antiphon.render.tools.client_tools import accepted
from antiphon.render.tools.declarations import Offer, whole
from antiphon.service.model_io.base import Held
from antiphon.service.model_io.constraints import must_call
from antiphon.service.model_io.selection import Heard, Tongue


def rules_of(request: CreateResponse, rendered: Rendered, held: Held) -> Rules | None:
    """None: it is content with whatever the model says."""
    if not rendered.offered.offers and type(request.text.format) is TextFormat:
        return None
    if request.skip_special_tokens is False:
        return None
    rules = settle_rules(request, rendered, held)
    return None if rules.must is None and rules.form is None and not rules.tools else rules


def has_grammars(rules: Rules) -> bool:
    return any(rule.lark is not None for rule in rules.tools.values())


async def check_grammars(rules: Rules, request: CreateResponse) -> None:
    """In a thread each. What cannot be read is refused by its field."""
    for rule in rules.tools.values():
        if rule.lark is not None and (fault := await asyncio.to_thread(unreadable, rule.lark)):
            sentence = f"The grammar of the tool {rule.offered!r} cannot be read: {fault}"
            raise InvalidValue(sentence, param=_grammar_of(rule.offered, request))


def _grammar_of(offered: str, request: CreateResponse) -> str:
    """The field that it stands in."""
    for index, tool in enumerate(request.tools):
        if isinstance(tool, CustomTool) and tool.name == offered:
            return f"tools[{index}].format.definition"
    return "tools"  # within a namespace


def settle_rules(request: CreateResponse, rendered: Rendered, held: Held) -> Rules:
    offers = rendered.offered.offers
    names = must_call(rendered.prompt)
    must = frozenset([_key(offers[name]) for name in names]) if names else None
    rules = {key: rule for key, rule in _tool_rules(rendered, held) if rule.held or rule.schema or key in (must or ())}
    return Rules(must=must, tools=rules, form=_form(request, held))


def _tool_rules(rendered: Rendered, held: Held) -> Iterator[tuple[Key, ToolRule]]:
    for name, offer in rendered.offered.offers.items():
        yield _key(offer), _tool_rule(name, offer, rendered.offered.schemas[name]["function"], "calls" in held)


def _tool_rule(name: str, offer: Offer, function: Json, enforced: bool) -> ToolRule:
    if (schema := accepted(offer.kind, function["parameters"])) is not None:
        return ToolRule(offered=name, schema=schema)
    grammar = offer.grammar
    if grammar is not None and grammar.syntax == "regex":
        return ToolRule(offered=name, schema={"type": "string", "pattern": whole(grammar.definition)}, text=True)
    if grammar is not None and knows_lark():
        return ToolRule(offered=name, lark=grammar.definition, text=True)
    if function.get("strict"):
        schema = function["parameters"]
        return ToolRule(offered=name, schema=schema, held=not enforced or without_lookaround(schema) != schema)
    return ToolRule(offered=name, held=False)


def _form(request: CreateResponse, held: Held) -> Form | None:
    """Who did not want it strict is content with any JSON."""
    match request.text.format:
        case JsonSchemaFormat(schema=schema, strict=strict):
            return Form(schema={} if strict is False else schema, held="form" not in held)
        case JsonObjectFormat():
            return Form(schema={"type": "object"}, held="form" not in held)
        case _:
            return None


def _key(offer: Offer) -> Key:
    return offer.namespace, offer.name


class AskedAgain:
    """The same chat, with what the model said and what was wrong with it; as it was, if its template takes no more."""

    def __init__(self, chat: ChatPrompt, tongue: Tongue, heard: Heard, prompt: Prompt) -> None:
        self._chat = chat
        self._tongue = tongue
        self._heard = heard
        self._prompt = prompt
        self._now = datetime.now()

    async def __call__(self, misfit: Misfit) -> tuple[Prompt, Parser]:
        if self._tongue.long(self._chat):
            return await asyncio.to_thread(self._asked, misfit)
        return self._asked(misfit)

    def _asked(self, misfit: Misfit) -> tuple[Prompt, Parser]:
        said = {"role": "assistant", "content": misfit.said or "(nothing)"}
        more = (*self._chat.messages, said, {"role": "user", "content": misfit.complaint})
        chat, heard = replace(self._chat, messages=more), self._heard
        try:
            prompt = self._tongue.say(chat, lambda: self._now)
            heard = self._tongue.hear(chat, prompt)
        except BadRequest:
            prompt = self._prompt
        return prompt, load_parser(heard.parser)(prompt, heard.reading)
