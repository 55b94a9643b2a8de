"""Models whose own words we read: thoughts and calls between marks, as their family writes them."""

from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Prompt, Template, TextPrompt
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import PLAIN, Reading
from antiphon.parsers.calls.registry import load_format
from antiphon.parsers.detection import Manner
from antiphon.parsers.reasoning.formats import THOUGHTS, closed, opens
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.control_token_escape import break_up, quote
from antiphon.render.template.reasoning_effort import effort_variables, known_variables
from antiphon.render.template.template import knows_tools, render_text
from antiphon.render.template.tool_prompt import FORMAT, in_words
from antiphon.service.model_io.base import Heard, Now, is_much, is_thoughtless, means
from antiphon.service.model_io.constraints import Demand, Demands, told_of_form
from antiphon.service.model_io.sampling import constraint


class RawTongue:
    def __init__(self, request: CreateResponse, able: Capabilities, manner: Manner) -> None:
        self.honours = able.honours - {"tools"} if manner.calls is None else able.honours | {"tools"}
        self.lasts = self.verbatim = False
        self._request = request
        self._opened = False  # the prompt ends within a thought
        self._template = able.template
        self._gullible = able.gullible
        self._broken = False  # something in the prompt may have been
        known = able.knows_tools if able.template is None else knows_tools(able.template)
        self._knows_tools = known and not manner.foreign
        self._manner = manner if self._knows_tools or manner.calls is None else replace(manner, calls=FORMAT)
        self._demands = Demands(request, self._manner, means(able))

    def long(self, chat: ChatPrompt) -> bool:
        return is_much(chat)

    def say(self, chat: ChatPrompt, now: Now) -> Prompt:
        """A template that knows no tools is told of them in words, and an engine that renders gets no control tokens
        but its own."""
        if (form := self._demands.unheld_form(chat)) is not None:
            chat = told_of_form(chat, form)
        given = chat
        if self._gullible:
            chat = break_up(chat)
        elif self._manner.thoughts:
            marks = THOUGHTS[self._manner.thoughts]
            chat = quote(chat, marks.opening, marks.closing)
        if not self._knows_tools:
            chat = in_words(chat)
        self._broken = chat is not given
        if self._template is None:
            return chat
        return self._seen(render_text(self._template, self._with_effort(chat, self._template), now()))

    def hear(self, chat: ChatPrompt, said: Prompt) -> Heard:
        demand = self._demand(chat, self._reading(chat))
        return Heard(
            parser="unbroken raw" if self._broken else "raw",
            reading=demand.reading,
            constraint=demand.constraint,
            shown=_shown(demand.reading),
            held=demand.held,
        )

    def _seen(self, prompt: TextPrompt) -> TextPrompt:
        marks = THOUGHTS[self._manner.thoughts] if self._manner.thoughts else None
        self._opened = marks is not None and opens(prompt, marks)
        if self._opened and marks is not None and self._request.reasoning.effort == "none":
            self._opened = False
            return closed(prompt, marks)
        return prompt

    def _with_effort(self, chat: ChatPrompt, template: Template) -> ChatPrompt:
        told = effort_variables(self._request.reasoning.effort, template.source)
        return replace(chat, template_kwargs={**told, **chat.template_kwargs}) if told else chat

    def _demand(self, chat: ChatPrompt, reading: Reading) -> Demand:
        if self._request.skip_special_tokens is False:
            return Demand(reading=reading, constraint=constraint(self._request))
        return self._demands.of(chat, reading, self._opened)

    def _reading(self, chat: ChatPrompt) -> Reading:
        """A client that wants to see control tokens gets what the model says, as it says it."""
        if self._request.skip_special_tokens is False:
            return PLAIN
        tools = {tool["function"]["name"]: tool for tool in chat.tools}
        return Reading(
            thoughts=self._manner.thoughts,
            calls=self._manner.calls if tools else None,
            tools=tools,
            unseen=self._template is None and not is_thoughtless(self._request, chat),
        )


def thoughtful(able: Capabilities) -> Capabilities:
    """With the effort, where the model's own template can be told whether to think."""
    if able.template is None or not known_variables(able.template.source):
        return able
    return replace(able, honours=able.honours | {"reasoning.effort"})


def _shown(reading: Reading) -> tuple[str, ...]:
    thoughts = THOUGHTS[reading.thoughts].controls if reading.thoughts else ()
    return thoughts + (load_format(reading.calls)(reading.tools).controls if reading.calls else ())
