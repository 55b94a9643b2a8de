"""What engines over HTTP do beside generating: count, tokenize, embed, and what is handed through as it is.

`deeds` of an engine says where; whether it really does is found out by asking. Who lacks one says so by name.
"""

import asyncio
from collections.abc import Container, Iterable, Sequence
from typing import ClassVar, TypeVar

import msgspec
from msgspec.json import Decoder

from antiphon.core.prompt import ChatPrompt, Json, Prompt, Segment, TextPrompt, TokenPrompt
from antiphon.engines.base import JSON, Capabilities, Deed, Embedded, Relayed
from antiphon.engines.client import Client, Refused
from antiphon.engines.http.body import ChatBody
from antiphon.engines.http.error_mapping import explained, words_of
from antiphon.engines.http.probe_client import Asking
from antiphon.engines.http.readers import wire
from antiphon.engines.http.transcription_stream import retold
from antiphon.errors import AntiphonError, EngineFailed, UnsupportedParameter

T = TypeVar("T")

MOST_TOKEN_BYTES = 128  # hardly any token of any vocabulary is longer
HELLO: Json = {"role": "user", "content": "Hello!"}
LOOK: Json = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
_OF_PAIRS: frozenset[Deed] = frozenset({"score", "rerank"})  # their texts are in several fields, by several names
_OF_AUDIO: frozenset[Deed] = frozenset({"transcribe", "translate"})
_OTHERWISE = "--is-embedding"  # SGLang: how it has to be started for that
OPENINGS = ("<think>", "<think>\n", "<think>\n\n")


class Deeds:
    """A part of HttpEngine."""

    name: ClassVar[str]
    deeds: ClassVar[dict[Deed, str]] = {}  # → the path
    counting_path: ClassVar[str] = ""  # asked how many tokens a chat has
    embedding_fields: ClassVar[frozenset[str]] = frozenset()  # of those that not everyone has
    embeds_tokens: ClassVar[bool] = True  # not texts alone
    splits_text: ClassVar[bool] = False  # a text becomes tokens in stretches: some may hold control tokens, some not

    _root: str
    _who: str
    _client: Client
    _quick: Client
    _asking: Asking
    _chat_body: ChatBody
    _by_tokens: bool

    async def count(self, model: str, prompt: Prompt) -> int:
        if not isinstance(prompt, ChatPrompt):
            return len(await self.tokenize(model, prompt))
        body = self._conversation(model, prompt)
        if prompt.tools:
            body["tools"] = prompt.tools
        encoded, context = msgspec.json.encode(body), self._context(model)
        if context and (least := len(encoded) // MOST_TOKEN_BYTES) > context and not _has_parts(prompt):
            return least  # not exactly, but too many: megabytes need not be tokenised to know that
        if self._by_tokens:
            return len(await self._chat_tokens(model, prompt, None))
        if not self.counting_path:
            raise EngineFailed(f"{self._who} cannot count this.")
        try:
            said = await self._quick.post(self._root + self.counting_path, encoded, wire.COUNTED)
        except Refused as refused:
            raise explained(refused, self._who, model) from None
        return said.count or said.input_tokens or 0

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        match prompt:
            case TokenPrompt(tokens=tokens):
                return tokens
            case TextPrompt(segments=segments):
                return await self._text_tokens(model, segments, special)
            case ChatPrompt():
                return await self._chat_tokens(model, prompt, None)

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        body = {"model": model, "tokens": tokens, "skip_special_tokens": False}
        said = await self._asked(model, self._path("detokenize"), body, wire.DETOKENIZED)
        return said.prompt or said.text or said.content or ""

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> Embedded:
        wishes = {"dimensions": dimensions, "truncate_prompt_tokens": truncate}
        wishes = {field: value for field, value in wishes.items() if value is not None}
        self._check_embedding(inputs, wishes, (await self.capabilities(model)).honours)
        body: Json = {"model": model, "input": inputs, "encoding_format": "float", **wishes}
        try:
            said = await self._client.post(self._path("embed"), msgspec.json.encode(body), wire.VECTORS)
        except Refused as refused:
            if _OTHERWISE in words_of(refused.body):
                raise UnsupportedParameter(f"{self._who} makes no embeddings with this model.", param="model") from None
            raise explained(refused, self._who, model) from None
        ranked = sorted(enumerate(said.data), key=lambda one: one[0] if one[1].index is None else one[1].index)
        return Embedded(vectors=[vector.embedding for _, vector in ranked], tokens=wire.counts(said.usage).input_tokens)

    def _check_embedding(
        self, inputs: Sequence[str | Sequence[int]], wishes: Iterable[str], honours: Container[str]
    ) -> None:
        for field in wishes:
            if field not in honours:
                raise UnsupportedParameter(f"'{field}' is not supported by the {self.name} engine.", param=field)
        for one in inputs:
            if isinstance(one, str):
                continue
            if not self.embeds_tokens:
                raise UnsupportedParameter(f"The {self.name} engine embeds texts, not token ids.", param="input")
            self._check_tokens(one, "input")

    async def relay(self, model: str, deed: Deed, body: bytes, media_type: str = JSON) -> Relayed:
        if deed not in (await self.capabilities(model)).does:
            raise UnsupportedParameter(f"{self._who} has no '{deed}' for this model.", param="model")
        try:
            answer = Relayed(*await self._client.relay(self._path(deed), body, media_type))
        except Refused as refused:
            error = explained(refused, self._who, model)
            if deed in _OF_PAIRS:
                error.param = None
            raise error from None
        return self._retold(model, deed, answer)

    def _retold(self, model: str, deed: Deed, answer: Relayed) -> Relayed:
        """In the shape that others have, where an engine has one of its own."""
        return retold(answer, self._who) if deed in _OF_AUDIO else answer

    # How an engine makes tokens.

    async def capabilities(self, model: str) -> Capabilities:
        raise NotImplementedError

    def _context(self, model: str) -> int | None:
        raise NotImplementedError

    def _check_tokens(self, tokens: Sequence[int], param: str) -> None:
        """InvalidValue for one that is in no vocabulary, where that is known."""
        raise NotImplementedError

    async def _text_tokens(self, model: str, segments: Sequence[Segment], special: bool) -> tuple[int, ...]:
        raise UnsupportedParameter(f"{self._who} does not tokenize for others.", param="model")

    async def _chat_tokens(self, model: str, prompt: ChatPrompt, effort: str | None) -> tuple[int, ...]:
        raise UnsupportedParameter(f"{self._who} does not tokenize chats for others.", param="model")

    async def _as_tokens(self, model: str, prompt: TextPrompt) -> TextPrompt | TokenPrompt:
        """Unless it does not say what they are: then the text will do."""
        if "tokenize" not in self.deeds:
            return prompt
        return TokenPrompt(await self._text_tokens(model, prompt.segments, True))

    def _path(self, deed: Deed) -> str:
        if deed not in self.deeds:
            raise UnsupportedParameter(f"{self._who} does not {deed}.", param="model")
        return self._root + self.deeds[deed]

    def _conversation(self, model: str, prompt: ChatPrompt) -> Json:
        body: Json = {"model": model, "messages": self._chat_body.messages(prompt)}
        return {**body, "chat_template_kwargs": prompt.template_kwargs} if prompt.template_kwargs else body

    async def _asked(self, model: str, path: str, body: Json, decoder: Decoder[T]) -> T:
        try:
            return await self._quick.post(path, msgspec.json.encode(body), decoder)
        except Refused as refused:
            raise explained(refused, self._who, model) from None

    # What is found out about it.

    async def _found(self) -> frozenset[Deed]:
        """Those whose paths are there."""
        there = await asyncio.gather(*[self._asking.has(path) for path in self.deeds.values()])
        return frozenset([deed for deed, found in zip(self.deeds, there, strict=True) if found])

    async def _can_count(self, model: str) -> bool:
        """Whether it does: older versions do not."""
        try:
            return await self.count(model, ChatPrompt((HELLO,))) > 0
        except AntiphonError:
            return False

    async def _knows_tools(self, model: str) -> bool:
        """Whether an offered tool makes a prompt longer; asked only where the calls are ours to read."""
        if not self._by_tokens:
            return True
        try:
            alone, offered = [
                await self._chat_tokens(model, ChatPrompt((HELLO,), tools), None) for tools in ((), (LOOK,))
            ]
        except AntiphonError:
            return False
        return len(offered) > len(alone)

    async def _openers(self, model: str) -> tuple[tuple[int, ...], ...]:
        """Of a prompt that ends with the opening mark of a thought, the last tokens; only where the mark is a token."""
        if not self._by_tokens:
            return ()
        texts = [(Segment(opening, control=True),) for opening in OPENINGS]
        try:
            made = [await self._text_tokens(model, text, False) for text in texts]
        except AntiphonError:
            return ()
        return tuple(made) if len(made[0]) == 1 else ()


def _has_parts(prompt: ChatPrompt) -> bool:
    """Whether there is more than text in it, such as an image, whose bytes say nothing about its tokens."""
    return any(isinstance(message.get("content"), list) for message in prompt.messages)
