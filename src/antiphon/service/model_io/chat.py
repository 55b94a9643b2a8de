"""Engines that render chats and parse answers themselves: all that is left is to name what is wanted.

Where the operator names a format, the engine leaves that in the text, and it is read here. An engine that takes no
tools is told of them in words then.
"""

from operator import is_

from antiphon.core.prompt import ChatPrompt, Prompt
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import Reading
from antiphon.parsers.detection import Manner
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import TextFormat
from antiphon.render.control_token_escape import break_up, is_harmless
from antiphon.render.template.tool_prompt import FORMAT, in_words
from antiphon.service.model_io.base import Heard, Now, is_much, is_thoughtless
from antiphon.service.model_io.sampling import constraint

_PLAIN = Heard(parser="chat")
_UNBROKEN = Heard(parser="unbroken chat")


class ChatTongue:
    def __init__(self, request: CreateResponse, able: Capabilities, manner: Manner | None = None) -> None:
        """`manner`: as far as the operator has named it."""
        self._manner = manner or Manner(calls=None)
        self._in_words = self._manner.calls is not None and "tools" not in able.honours
        self.honours = able.honours | {"tools"} if self._in_words else able.honours
        self._request = request
        self._gullible = able.gullible
        self._harmless: tuple[object, object] | None = None  # tools and variables that were looked through last
        self.lasts = True
        self.verbatim = not (self._gullible or self._in_words)

    def long(self, chat: ChatPrompt) -> bool:
        return self._gullible and is_much(chat)

    def say(self, chat: ChatPrompt, now: Now) -> Prompt:
        said = self._broken_up(chat) if self._gullible else chat  # before there are marks of our own in it
        return in_words(said) if self._in_words else said

    def hear(self, chat: ChatPrompt, said: Prompt) -> Heard:
        broken = said is not chat  # something in it may have been
        if not chat.tools and self._manner.thoughts is None and type(self._request.text.format) is TextFormat:
            return _UNBROKEN if broken else _PLAIN  # as most are heard
        made = constraint(self._request)
        return Heard(
            parser="unbroken chat" if broken else "chat",
            reading=self._reading(chat),
            constraint=made,
            held=frozenset() if made is None else frozenset({"form"}),
        )

    def _broken_up(self, chat: ChatPrompt) -> ChatPrompt:
        """Tools are looked through once for all of a kind: of an agent's request they are the most."""
        known, around = self._harmless, (chat.tools, chat.template_kwargs)
        harmless = known is not None and all(map(is_, known, around))
        if not harmless and (harmless := is_harmless(chat)):
            self._harmless = around
        return break_up(chat, harmless)

    def _reading(self, chat: ChatPrompt) -> Reading:
        tools = {tool["function"]["name"]: tool for tool in chat.tools}
        calls = FORMAT if self._in_words else self._manner.calls
        off = is_thoughtless(self._request, chat)
        return Reading(
            thoughts=self._manner.thoughts, calls=calls if tools else None, tools=tools if calls else {}, unseen=not off
        )
