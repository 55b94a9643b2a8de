"""gpt-oss: prompts and answers are tokens of Harmony, whatever engine it runs on.

A client that wants to see control tokens gets what the model says, as the engine spells it.
"""

from typing import ClassVar, Final

from msgspec.structs import replace

from antiphon.core.harmony import STOPS
from antiphon.core.prompt import ChatPrompt, Constraint, Json, Prompt
from antiphon.engines.base import Capabilities
from antiphon.errors import StartupError, UnsupportedParameter
from antiphon.parsers.base import Reading
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import StructuralTagFormat
from antiphon.render.harmony.system import Demand, builtins_of, demanded, others_of, set_scene, without_builtins
from antiphon.render.registry import load_renderer
from antiphon.service.model_io.base import Heard, Now, means
from antiphon.service.model_io.sampling import constraint, stops

# What the prompt says and the parser sees to, whatever the engine can do.
OURS: Final = frozenset({
    "tools", "tool_choice", "parallel_tool_calls", "phase", "developer", "reasoning.effort", "stop",
    "include_stop_str_in_output",
})  # fmt: skip
AT_ONCE: Final = 8192  # characters that become tokens where they are asked for, in some milliseconds
LACKS: Final = {
    "input_image": "gpt-oss sees no images.",
    "chat_template_kwargs": "gpt-oss is not told anything by a template: send `reasoning.effort`.",
}


class HarmonyTongue:
    spoke: ClassVar[bool] = False  # ever: so the vocabulary is loaded

    def __init__(self, request: CreateResponse, able: Capabilities) -> None:
        self.honours = able.honours | OURS
        self.lasts = self.verbatim = False
        self._request = request
        self._means = means(able)

    def say(self, chat: ChatPrompt, now: Now) -> Prompt:
        rest = without_builtins(chat)
        scene = set_scene(self._request, now().date(), self._demand(chat), builtins_of(chat))
        try:
            prompt = load_renderer("harmony")(rest, scene)
        except StartupError as error:  # known too late: the model was found out by its name
            raise UnsupportedParameter(str(error), param="model") from None
        HarmonyTongue.spoke = True
        return prompt

    def long(self, chat: ChatPrompt) -> bool:
        return not self.spoke or sum([len(str(message.get("content"))) for message in chat.messages]) > AT_ONCE

    def hear(self, chat: ChatPrompt, said: Prompt) -> Heard:
        demand = self._demand(chat)
        made = self._constraint(demand)
        if self._request.skip_special_tokens is False:
            return Heard(parser="raw", constraint=made, stops=STOPS)
        reading = self._reading(chat)
        return Heard(parser="harmony", reading=reading, constraint=made, stops=STOPS, held=demand.held)

    def _reading(self, chat: ChatPrompt) -> Reading:
        spaces: dict[str, Json] = {name: {} for name in (*builtins_of(chat), *others_of(chat))}
        tools = {tool["function"]["name"]: tool for tool in without_builtins(chat).tools}
        kept = bool(self._request.include_stop_str_in_output)
        return Reading(tools={**tools, **spaces}, stop=stops(self._request), keeps_stop=kept)

    def _demand(self, chat: ChatPrompt) -> Demand:
        return demanded(self._request, without_builtins(chat), self._means, bool(builtins_of(chat)))

    def _constraint(self, demand: Demand) -> Constraint | None:
        """A tag of the client's own is about all that the model says, headers included."""
        if not isinstance(self._request.text.format, StructuralTagFormat):
            return demand.constraint
        if demand.opening or demand.constraint is not None:
            raise UnsupportedParameter(
                "'text.format' with a structural tag is not supported together with a tool that must be called.",
                param="text.format",
            )
        return constraint(self._request)


def in_harmony(able: Capabilities) -> Capabilities:
    """What a model can do that speaks it."""
    honours = (able.honours | OURS) - LACKS.keys()
    return replace(able, honours=honours, lacks={**_without(able.lacks, OURS), **LACKS})


def _without(lacks: dict[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: reason for name, reason in lacks.items() if name not in names}
