"""Work → the body of a request, in the words of one engine. What it lacks is refused by name."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from antiphon.core.prompt import (
    ChatPrompt,
    Constraint,
    Grammar,
    Json,
    JsonObject,
    JsonSchema,
    Sampling,
    StructuralTag,
    TextPrompt,
    TokenPrompt,
    Work,
)
from antiphon.engines.http.fields import Column, Kept, Lacking, Sent
from antiphon.errors import EngineFailed, UnsupportedParameter

T = TypeVar("T")

# A field of Sampling → the field of the request that it is made from, where they differ.
_ASKED_AS = {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
_FIELDS = tuple((field.name, _ASKED_AS.get(field.name, field.name), field.default) for field in fields(Sampling))
_MOST_SAMPLINGS = 64
_LONGEST_REST = 32 * 1024  # that is kept: tools make it long
_MOST_BYTES = 256 * 1024  # of all that are kept; what they were made of takes up to twenty times as much
_encode = msgspec.json.Encoder().encode
THOUGHT = "reasoning_content"  # what the key is in a ChatPrompt
NOBODY: Json = {"role": "user", "content": ""}  # says nothing, so that the turn is the model's
# Values that ask for nothing: who lacks the field need not be told.
_NEUTRAL = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_PARAMS = {"structural_tag": "text.format"}  # of a field of the table, where the request has another name


class Words:
    """What one engine calls the fields of a request. Works of one kind share their sampling: what becomes of it is
    kept, and never changed."""

    def __init__(self, engine: str, column: Column) -> None:
        self._engine = engine
        self._column = column
        self._sampled: dict[int, tuple[Sampling, Json]] = {}  # by the identity of what it holds

    def name(self, field: str) -> str | None:
        cell = self._column[field]
        return cell.name if isinstance(cell, Sent) else None

    def put_all(self, body: Json, work: Work) -> None:
        known = self._sampled.get(id(work.sampling))
        body.update(self._told(work.sampling) if known is None else known[1])
        if work.constraint is not None:
            self.put(body, _field(work.constraint), work.constraint)
        if work.effort is not None:
            self.put(body, "reasoning.effort", work.effort)
        if work.cache_key is not None:
            key = work.cache_key if work.salt is None else _mixed(work.salt, work.cache_key)
            self.put(body, "prompt_cache_key", key)
        if work.salt is not None:
            self.put(body, "cache_salt", work.salt)
        if work.priority is not None:
            self.put(body, "priority", work.priority)
        if work.request_id is not None:
            self.put(body, "request_id", work.request_id)
        if work.mm_processor_kwargs is not None:
            self.put(body, "mm_processor_kwargs", work.mm_processor_kwargs)
        if work.kv_transfer_params is not None:
            self.put(body, "kv_transfer_params", work.kv_transfer_params)

    def _told(self, sampling: Sampling) -> Json:
        told: Json = {}
        for name, field, default in _FIELDS:
            if (value := getattr(sampling, name)) != default and (field != "best_of" or value > 1):
                self.put(told, field, value)
        _keep(self._sampled, sampling, told)
        return told

    def put(self, body: Json, field: str, value: Any) -> None:
        match self._column[field]:
            case Sent(name=name, change=change, also=also):
                _place(body, name, value if change is None else change(value))
                body.update(also)
            case Lacking(reason=reason) if field not in _NEUTRAL or value != _NEUTRAL[field]:
                raise UnsupportedParameter(
                    f"'{field}' is not supported by the {self._engine} engine: {reason}",
                    param=_PARAMS.get(field, field),
                )
            case Lacking() | Kept():
                pass


class ChatBody:
    """Makes bodies for one engine; `fixed` is in all that are for a stream. `goes_on`: it takes an assistant's message
    at the end for the beginning of its answer."""

    def __init__(self, words: Words, fixed: Json, *, goes_on: bool = False) -> None:
        self._words = words
        self._fixed = fixed
        self._goes_on = goes_on
        self._thought = words.name("reasoning items")
        self._rests: dict[bool, dict[int, tuple[Sampling, _Rest]]] = {False: {}, True: {}}  # for streams, or not
        self._bytes = 0  # of these, or more

    def make(self, work: Work, *, stream: bool) -> bytes:
        prompt = work.prompt
        if not isinstance(prompt, ChatPrompt):
            raise EngineFailed("A chat was expected here, and something else was given.")
        known = self._rests[stream].get(id(work.sampling))
        rest = known[1] if known is not None and known[1].suits(work, prompt) else self._rest(work, prompt, stream)
        thinks = False
        for message in prompt.messages:
            if isinstance(content := message.get("content"), list):
                _vet_images(content)
            thinks = thinks or THOUGHT in message
        messages = self.messages(prompt) if thinks or self._goes_on else prompt.messages
        return b"".join((rest.before, _encode(messages), rest.after))

    def _rest(self, work: Work, prompt: ChatPrompt, stream: bool) -> "_Rest":
        body: Json = {"stream": stream}
        if stream:
            body |= {"stream_options": {"include_usage": True}, **self._fixed}
        self._words.put_all(body, work)
        if prompt.tools or prompt.template_kwargs:
            self._offer(body, prompt)
        rest = _Rest(
            before=b'{"model":%b,"messages":' % _encode(work.model),
            after=b",%b" % _encode(body)[1:],
            model=work.model,
            tools=prompt.tools,
            tool_choice=prompt.tool_choice,
            parallel=prompt.parallel_tool_calls,
            template_kwargs=prompt.template_kwargs,
            constraint=work.constraint,
            effort=work.effort,
            cache_key=work.cache_key,
            salt=work.salt,
            priority=work.priority,
        )
        size = len(rest.before) + len(rest.after)
        if size <= _LONGEST_REST and rest.suits(work, prompt):
            self._bytes += size
            if self._bytes > _MOST_BYTES:
                self._rests, self._bytes = {False: {}, True: {}}, size
            _keep(self._rests[stream], work.sampling, rest)
        return rest

    def messages(self, prompt: ChatPrompt) -> Sequence[Json]:
        """With earlier thoughts under the name that the engine reads them by; and answered, not gone on with."""
        messages: Sequence[Json] = prompt.messages
        name = self._thought
        if name != THOUGHT and any(THOUGHT in message for message in messages):
            messages = [_renamed(message, name) for message in messages]
        if self._goes_on and messages and messages[-1]["role"] == "assistant":
            messages = [*messages, NOBODY]
        return messages

    def _offer(self, body: Json, prompt: ChatPrompt) -> None:
        if prompt.template_kwargs and self._words.name("chat_template_kwargs"):
            self._words.put(body, "chat_template_kwargs", prompt.template_kwargs)
        if not prompt.tools:
            return
        self._words.put(body, "tools", prompt.tools if self._words.name("tool_choice") else _named_alone(prompt))
        if prompt.tool_choice != "auto":
            self._words.put(body, "tool_choice", prompt.tool_choice)
        if not prompt.parallel_tool_calls:
            self._words.put(body, "parallel_tool_calls", False)


class _Rest(Struct, frozen=True, kw_only=True):
    """What stands around the messages, and all that it was made of beside a sampling."""

    before: bytes
    after: bytes
    model: str
    tools: tuple[Json, ...]
    tool_choice: str | Json
    parallel: bool
    template_kwargs: Json
    constraint: Constraint | None
    effort: str | None
    cache_key: str | None
    salt: str | None
    priority: int | None

    def suits(self, work: Work, prompt: ChatPrompt) -> bool:
        """Another work with the same sampling. What works of one kind share is the same object, and what only looks
        the same may be another thing in JSON."""
        return (
            work.model == self.model
            and prompt.tools is self.tools
            and prompt.tool_choice is self.tool_choice
            and prompt.parallel_tool_calls is self.parallel
            and prompt.template_kwargs is self.template_kwargs
            and work.constraint is self.constraint
            and work.effort == self.effort
            and work.cache_key == self.cache_key
            and work.salt == self.salt
            and work.priority == self.priority
            and work.request_id is None
            and work.mm_processor_kwargs is None
            and work.kv_transfer_params is None
        )


def _named_alone(prompt: ChatPrompt) -> Sequence[Json]:
    """Of the tools, for an engine that cannot be told which of them to call."""
    choice = prompt.tool_choice
    if not isinstance(choice, dict):
        return prompt.tools
    return [tool for tool in prompt.tools if tool["function"]["name"] == choice["function"]["name"]]


class RawBody:
    """For prompts that are rendered already. `text` and `ids`: what the engine calls them; `named`: it wants to know
    the model."""

    shows = ""  # what it calls a list of control tokens that it is to show; nothing: it shows all of them or none

    def __init__(
        self, words: Words, fixed: Json, *, text: str = "prompt", ids: str = "prompt", named: bool = True
    ) -> None:
        self._words = words
        self._fixed = fixed
        self._text, self._ids, self._named = text, ids, named

    def make(self, work: Work, *, stream: bool) -> bytes:
        body: Json = {"model": work.model, "stream": stream} if self._named else {"stream": stream}
        if stream:
            body |= self._fixed
        match work.prompt:
            case TokenPrompt(tokens=tokens):
                body[self._ids] = tokens
            case TextPrompt(segments=segments):
                body[self._text] = "".join([segment.text for segment in segments])
            case ChatPrompt():
                raise EngineFailed("A rendered prompt was expected here, and a chat was given.")
        self._words.put_all(body, work)
        if work.shown and self.shows:
            body[self.shows] = work.shown
        elif work.shown:
            self._words.put(body, "skip_special_tokens", False)
        return _encode(body)


def _keep(made: dict[int, tuple[Sampling, T]], sampling: Sampling, what: T) -> None:
    """So many, and none that a client can make long."""
    if not (sampling.stop or sampling.stop_token_ids or sampling.logit_bias):
        if len(made) >= _MOST_SAMPLINGS:
            made.clear()
        made[id(sampling)] = sampling, what


def _field(constraint: Constraint) -> str:
    """The row of the table that a constraint belongs to."""
    match constraint:
        case JsonObject() | JsonSchema():
            return "text.format"
        case StructuralTag():
            return "structural_tag"
        case Grammar(syntax=syntax):
            return f"grammar.{syntax}"


def _mixed(salt: str, key: str) -> str:
    """Whoever is of another tenant cannot use the same."""
    return blake2b(f"{salt}:{key}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _place(body: Json, name: str, told: Any) -> None:
    """Objects within the body are never changed, but made anew: they may be shared."""
    *within, leaf = name.split(".")
    for key in within:
        body[key] = body = {**body.get(key, {})}
    body[leaf] = {**body[leaf], **told} if leaf in body and isinstance(told, dict) else told


def _renamed(message: Json, name: str | None) -> Json:
    if THOUGHT not in message:
        return message
    others = {key: value for key, value in message.items() if key != THOUGHT}
    return others if name is None else {**others, name: message[THOUGHT]}


def _vet_images(content: Sequence[Json]) -> None:
    """An engine fetches whatever a URL names, so it is given none."""
    for part in content:
        if part.get("type") == "image_url" and not part["image_url"]["url"].startswith("data:"):
            raise UnsupportedParameter("Images are taken as data URLs; other URLs are not fetched.", param="input")
