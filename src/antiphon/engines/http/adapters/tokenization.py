"""Base of the vLLM and SGLang adapters, which tokenize alike: texts, and chats rendered by the model's own template."""

from collections.abc import Sequence

from antiphon.core.prompt import ChatPrompt, Json, Segment
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.readers import wire


class TokenizingEngine(HttpEngine):
    """HTTP engine with `/tokenize`. A reasoning effort is also passed to the template, as these engines do for
    chats.
    """

    levels = frozenset({"chat", "tokens"})
    raw_levels = frozenset({"text", "tokens"})
    counting_path = "/tokenize"

    async def _tokenize_text(self, model: str, segments: Sequence[Segment], special: bool) -> tuple[int, ...]:
        """Tokenize texts. The engines parse control tokens in every segment, control segment or not."""
        text = "".join([segment.text for segment in segments])
        body: Json = {"model": model, "prompt": text, "add_special_tokens": special}
        return tuple((await self._post_quick(model, self._task_path("tokenize"), body, wire.TOKENIZE_REPLY)).tokens)

    async def _tokenize_chat(self, model: str, prompt: ChatPrompt, effort: str | None) -> tuple[int, ...]:
        body = self._chat_fields(model, prompt)
        if effort is not None:
            variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
            body["chat_template_kwargs"] = {**variables, **prompt.template_kwargs}
        if prompt.tools:
            body["tools"] = prompt.tools
        return tuple((await self._post_quick(model, self._task_path("tokenize"), body, wire.TOKENIZE_REPLY)).tokens)
