"""Work → the body of a chat completion, in the words of one engine. What it lacks is refused by name."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import fields

from antiphon.core.prompt import ChatPrompt, Json, Sampling, Work
from antiphon.engines.http.fields import Column, Kept, Lacking, Sent
from antiphon.errors import EngineFailed, UnsupportedParameter

# A field of Sampling → the field of the request that it is made from, where they differ.
_ASKED_AS = {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
_SAMPLING = tuple((field.name, _ASKED_AS.get(field.name, field.name), field.default) for field in fields(Sampling))
_PLAIN = Sampling()
THOUGHT = "reasoning_content"  # what the key is in a ChatPrompt
# Values that ask for nothing: who lacks the field need not be told.
_NEUTRAL = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}


class Body:
    """Makes bodies for one engine; `fixed` is in all of them."""

    def __init__(self, engine: str, column: Column, fixed: Json) -> None:
        self._engine = engine
        self._column = column
        self._fixed = fixed

    def make(self, work: Work, *, stream: bool) -> bytes:
        prompt = work.prompt
        if not isinstance(prompt, ChatPrompt):
            raise EngineFailed(f"The {self._engine} engine takes chats, and was given something else.")
        body: Json = {"model": work.model, "messages": self._messages(prompt), "stream": stream}
        if stream:
            body |= {"stream_options": {"include_usage": True}, **self._fixed}
        for field, value in _wishes(work):
            self._put(body, field, value)
        self._offer(body, prompt)
        _vet_images(prompt)
        return msgspec.json.encode(body)

    def _messages(self, prompt: ChatPrompt) -> Sequence[Json]:
        """With earlier thoughts under the name that the engine reads them by."""
        cell = self._column["reasoning items"]
        name = cell.name if isinstance(cell, Sent) else None
        if name == THOUGHT or not any(THOUGHT in message for message in prompt.messages):
            return prompt.messages
        return [_renamed(message, name) for message in prompt.messages]

    def _put(self, body: Json, field: str, value: Any) -> None:
        match self._column[field]:
            case Sent(name=name, change=change, also=also):
                told = value if change is None else change(value)
                body[name] = {**body[name], **told} if name in body and isinstance(told, dict) else told
                body.update(also)
            case Lacking(reason=reason) if field not in _NEUTRAL or value != _NEUTRAL[field]:
                raise UnsupportedParameter(
                    f"'{field}' is not supported by the {self._engine} engine: {reason}", param=field
                )
            case Lacking() | Kept():
                pass

    def _offer(self, body: Json, prompt: ChatPrompt) -> None:
        kwargs = self._column["chat_template_kwargs"]
        if prompt.template_kwargs and isinstance(kwargs, Sent):
            self._put(body, "chat_template_kwargs", prompt.template_kwargs)
        if not prompt.tools:
            return
        body["tools"] = prompt.tools
        if prompt.tool_choice != "auto":
            self._put(body, "tool_choice", prompt.tool_choice)
        if not prompt.parallel_tool_calls:
            self._put(body, "parallel_tool_calls", False)


def _wishes(work: Work) -> Iterator[tuple[str, Any]]:
    """What was asked for, by the names of the request; not what asks for nothing."""
    sampling = work.sampling
    if sampling != _PLAIN:
        for name, field, default in _SAMPLING:
            if (value := getattr(sampling, name)) != default and (field != "best_of" or value > 1):
                yield field, value
    if work.constraint is not None:
        yield "text.format", work.constraint
    if work.effort is not None:
        yield "reasoning.effort", work.effort
    if work.cache_key is not None:
        yield "prompt_cache_key", work.cache_key
    if work.priority is not None:
        yield "priority", work.priority


def _renamed(message: Json, name: str | None) -> Json:
    if THOUGHT not in message:
        return message
    others = {key: value for key, value in message.items() if key != THOUGHT}
    return others if name is None else {**others, name: message[THOUGHT]}


def _vet_images(prompt: ChatPrompt) -> None:
    """An engine fetches whatever a URL names, so it is given none."""
    for message in prompt.messages:
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for part in content:
            if part.get("type") == "image_url" and not part["image_url"]["url"].startswith("data:"):
                raise UnsupportedParameter("Images are taken as data URLs; other URLs are not fetched.", param="input")
