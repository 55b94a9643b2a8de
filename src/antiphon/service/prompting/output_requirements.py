"""Output requirements that the engine does not enforce itself, and the prompt of a retry."""

import asyncio
from datetime import datetime

from msgspec.structs import replace

from antiphon.agent.output_rules import Key, OutputFormat, OutputRules, ToolRule, Violation
from antiphon.core.prompt import ChatPrompt, Json, Prompt, TokenPrompt
from antiphon.core.truncated_json import parse_object
from antiphon.errors import BadRequest, InvalidValue
from antiphon.parsers.base import Parser
from antiphon.parsers.calls.grammar import strip_lookaround
from antiphon.protocol.schemas.grammars import find_grammar_error, has_lark
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat, TextFormat
from antiphon.protocol.types.shared_list import derive
from antiphon.protocol.types.tools import CustomTool
from antiphon.render.harmony.system import EnforcedParts, list_required_tools
from antiphon.render.messages import RenderedChat
from antiphon.render.tools.client_tools import accepted_schema
from antiphon.render.tools.declarations import anchor_pattern
from antiphon.render.tools.offered_tools import OfferedTool, OfferedTools, make_offered_name
from antiphon.render.transcript import RenderedCall, Transcript
from antiphon.service.model_io.adapter import ModelAdapter, OutputSpec


def find_rules(request: CreateResponse, rendered: RenderedChat, enforced: EnforcedParts) -> OutputRules | None:
    """Return the rules that the output is checked against; None if any output is accepted."""
    if not rendered.offered.offers and type(request.text.format) is TextFormat:
        return None
    if request.skip_special_tokens is False:
        return None
    rules = build_rules(request, rendered, enforced)
    return None if rules.required_tools is None and rules.output_format is None and not rules.tools else rules


async def check_grammars(rules: OutputRules, request: CreateResponse) -> None:
    """Check the tools' Lark grammars, each in a thread. Raises InvalidValue with the field of an invalid one."""
    for rule in rules.tools.values():
        if rule.lark is not None and (fault := await asyncio.to_thread(find_grammar_error, rule.lark)):
            sentence = f"The grammar of the tool {rule.offered_name!r} cannot be read: {fault}"
            raise InvalidValue(sentence, param=_find_grammar_param(rule.offered_name, request))


def _find_grammar_param(offered: str, request: CreateResponse) -> str:
    """Return the request field that holds the tool's grammar."""
    for index, tool in enumerate(request.tools):
        if isinstance(tool, CustomTool) and tool.name == offered:
            return f"tools[{index}].format.definition"
    return "tools"  # the tool is in a namespace


def build_rules(request: CreateResponse, rendered: RenderedChat, enforced: EnforcedParts) -> OutputRules:
    offers = rendered.offered.offers
    names = [tool["function"]["name"] for tool in list_required_tools(rendered.prompt)]
    required = frozenset([_tool_key(offers[name]) for name in names]) if names else None
    are_enforced = "calls" in enforced
    key = ("rules", are_enforced)
    rules = derive(rendered.offered.chat_tools, key, lambda: _make_tool_rules(rendered.offered, are_enforced))
    checked = {key: rule for key, rule in rules.items() if rule.is_held or rule.schema or key in (required or ())}
    return OutputRules(required_tools=required, tools=checked, output_format=_make_output_format(request, enforced))


def _make_tool_rules(offered: OfferedTools, enforced: bool) -> dict[Key, ToolRule]:
    return {
        _tool_key(offer): _make_tool_rule(name, offer, offered.schemas[name]["function"], enforced)
        for name, offer in offered.offers.items()
    }


def _make_tool_rule(name: str, offer: OfferedTool, function: Json, enforced: bool) -> ToolRule:
    if (schema := accepted_schema(offer.kind, function["parameters"])) is not None:
        return ToolRule(offered_name=name, schema=schema)
    grammar = offer.grammar
    if grammar is not None and grammar.syntax == "regex":
        return ToolRule(
            offered_name=name, schema={"type": "string", "pattern": anchor_pattern(grammar.definition)}, takes_text=True
        )
    if grammar is not None and has_lark():
        return ToolRule(offered_name=name, lark=grammar.definition, takes_text=True)
    # a hosted tool reports invalid arguments to the model itself: being strict, it asks for the engine's grammar only
    if function.get("strict") and offer.kind == "function":
        schema = function["parameters"]
        return ToolRule(offered_name=name, schema=schema, is_held=not enforced or strip_lookaround(schema) != schema)
    return ToolRule(offered_name=name, is_held=False)


def _make_output_format(request: CreateResponse, enforced: EnforcedParts) -> OutputFormat | None:
    """Return the required JSON format. Without `strict` any JSON is accepted."""
    match request.text.format:
        case JsonSchemaFormat(schema=schema, strict=strict):
            return OutputFormat(schema={} if strict is False else schema, is_held="form" not in enforced)
        case JsonObjectFormat():
            return OutputFormat(schema={"type": "object"}, is_held="form" not in enforced)
        case _:
            return None


def _tool_key(offer: OfferedTool) -> Key:
    return offer.namespace, offer.name


class RetryPromptBuilder:
    """Builds the prompt of a retry: the same chat with the model's answer and the violation appended.

    Calls that nobody serves are repeated as calls, with the violation as their output. The original prompt is used if
    the chat template rejects the longer chat.
    """

    def __init__(self, chat: ChatPrompt, adapter: ModelAdapter, output_spec: OutputSpec, prompt: Prompt) -> None:
        self._chat = chat
        self._adapter = adapter
        self._output_spec = output_spec
        self._prompt = prompt
        self._now = datetime.now()

    async def __call__(self, violation: Violation) -> tuple[Prompt, Parser]:
        if self._adapter.is_slow(self._chat):
            return await asyncio.to_thread(self._build, violation)
        return self._build(violation)

    def _build(self, violation: Violation) -> tuple[Prompt, Parser]:
        chat, output_spec = self._extend_chat(violation), self._output_spec
        try:
            prompt = self._adapter.render(chat, lambda: self._now)
            output_spec = self._adapter.make_output_spec(chat, prompt)
        except BadRequest:
            prompt = self._prompt
        return prompt, output_spec.parser(prompt, output_spec.parser_options)

    def _extend_chat(self, violation: Violation) -> ChatPrompt:
        transcript, recipients = Transcript("tools" in self._adapter.honours), dict(self._chat.recipients)
        for number, call in enumerate(violation.calls):
            name, arguments = make_offered_name(call.name, None, ()), call.arguments
            recipients[name] = call.name
            # engines reject arguments that are not an object; gpt-oss writes code as it is
            if not isinstance(self._prompt, TokenPrompt) and parse_object(arguments) is None:
                arguments = "{}"
            transcript.add_call(RenderedCall(f"unserved_{number}", name, arguments), violation.feedback, "")
        if not violation.calls:
            transcript.add_assistant(violation.output or "(nothing)", "")
            transcript.add_message("user", violation.feedback)
        return replace(self._chat, messages=(*self._chat.messages, *transcript.finish()), recipients=recipients)
