"""vLLM and SGLang tokenize alike: a text, or a chat, which they render by the model's own template."""

from collections.abc import Sequence

from antiphon.core.prompt import ChatPrompt, Json, Segment
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.readers import wire


class Tokenizing(HttpEngine):
    """An effort is told to the template under its own name too, as these engines do for chats."""

    levels = frozenset({"chat", "tokens"})
    takes = frozenset({"text", "tokens"})
    counting_path = "/tokenize"

    async def _text_tokens(self, model: str, segments: Sequence[Segment], special: bool) -> tuple[int, ...]:
        """They take every text for the template's own: what looks like a control token becomes one."""
        text = "".join([segment.text for segment in segments])
        body: Json = {"model": model, "prompt": text, "add_special_tokens": special}
        return tuple((await self._asked(model, self._path("tokenize"), body, wire.TOKENIZED)).tokens)

    async def _chat_tokens(self, model: str, prompt: ChatPrompt, effort: str | None) -> tuple[int, ...]:
        body = self._conversation(model, prompt)
        if effort is not None:
            said = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
            body["chat_template_kwargs"] = {**said, **prompt.template_kwargs}
        if prompt.tools:
            body["tools"] = prompt.tools
        return tuple((await self._asked(model, self._path("tokenize"), body, wire.TOKENIZED)).tokens)
