"""A request that is checked and rendered, but holds no model slot yet: repeated, counted, or reduced to a warm-up.

Tokens are counted by the engine, or estimated as one token per four bytes of text, plus four tokens per message and
1024 per image. A warm-up lets the engine read a prompt into its prefix cache, so that a continuation starts sooner. One
token is requested, since no engine accepts zero, and discarded.
"""

from collections.abc import Sequence
from itertools import chain

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.output_rules import RetryPolicy
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.history.history import History
from antiphon.core.prompt import ChatPrompt, GenerationRequest, Json, Prompt, TextPrompt, TokenPrompt
from antiphon.engines.base import Capabilities, Engine
from antiphon.parsers.base import DEFAULT_OPTIONS, Parser, ParserOptions
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.items import InputItem, Message
from antiphon.protocol.types.parts import InputText
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.model_io.served_model import ServedModel

_BYTES_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4
_TOKENS_PER_IMAGE = 1024
_PLACEHOLDER_MESSAGE = Message(role="user", content=[InputText(text="Hello.")])


class PreparedPrompt(Struct, frozen=True, kw_only=True):
    """Everything for one model call except its slot."""

    engine: Engine
    generation: GenerationRequest
    parser: Parser
    parser_options: ParserOptions = DEFAULT_OPTIONS
    tool_resolver: ToolCallResolver
    retry_policy: RetryPolicy | None = None
    ignored: tuple[str, ...]
    history: History = History()  # complete, before truncation
    shortened: bool = False  # items were dropped to fit the context
    unlisted_servers: tuple[str, ...] = ()  # labels of MCP servers whose tools are not listed yet
    tokens: int | None  # of the prompt, if they were counted
    is_warmup: bool = False  # the output is discarded
    messages: tuple[Json, ...] = ()  # the prompt as chat messages

    def copy_for_call(self) -> "PreparedPrompt":
        """Return a copy for another model call, with its own parser and resolver."""
        parser = type(self.parser)(self.generation.prompt, self.parser_options)
        return replace(self, parser=parser, tool_resolver=self.tool_resolver.copy_for_retry())


class PreparedRequest(Struct, frozen=True, kw_only=True):
    tenant: str
    decoded: DecodedRequest  # references resolved
    served: ServedModel
    capabilities: Capabilities
    prepared: PreparedPrompt
    ignored: list[str]

    async def count_tokens(self) -> int | None:
        """Count the tokens of the prompt; None if the engine cannot count."""
        prompt, served = _add_effort(self.prepared.generation), self.served
        if self.prepared.tokens is not None and prompt is self.prepared.generation.prompt:
            return self.prepared.tokens
        if isinstance(prompt, TokenPrompt):
            return len(prompt.tokens)
        return await served.engine.count_tokens(served.model, prompt) if self.capabilities.can_count_tokens else None

    async def count_or_estimate(self) -> int:
        """Count the tokens of the prompt, or estimate them if the engine cannot count."""
        tokens = await self.count_tokens()
        return estimate_tokens(self.prepared.generation.prompt) if tokens is None else tokens


def repeat_request(prepared_request: PreparedRequest, times: int) -> list[PreparedRequest]:
    """Return the request `times` times. Each copy gets another result of a beam search, or another seed if set."""
    prepared = prepared_request.prepared
    sampling = prepared.generation.sampling
    if (sampling.best_of or 1) > 1:
        samplings = [replace(sampling, beam=number) for number in range(times)]
    elif (seed := sampling.seed) is not None:
        samplings = [replace(sampling, seed=(seed + number) % 2**32) for number in range(times)]
    else:
        return [prepared_request] * times
    generations = [replace(prepared.generation, sampling=each) for each in samplings]
    return [replace(prepared_request, prepared=replace(prepared, generation=generation)) for generation in generations]


def measure_bytes(prompt: Prompt) -> int:
    """Return the size in bytes, an upper bound of the tokens."""
    match prompt:
        case ChatPrompt():
            messages, images = _take_images(prompt.messages)
            return len(msgspec.json.encode(replace(prompt, messages=messages))) + sum(map(len, images))
        case TextPrompt(segments=segments):
            return sum([len(segment.text.encode("utf-8", "surrogatepass")) for segment in segments])
        case TokenPrompt(tokens=tokens):
            return len(tokens)


def estimate_tokens(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt():
            text, others = flatten_chat(prompt)
            return -(-len(text) // _BYTES_PER_TOKEN) + others
        case TextPrompt():
            return -(-measure_bytes(prompt) // _BYTES_PER_TOKEN)
        case TokenPrompt(tokens=tokens):
            return len(tokens)


def flatten_chat(prompt: ChatPrompt) -> tuple[bytes, int]:
    """Return the texts of a chat as JSON, and an estimate of its other tokens: the template's and those of images."""
    messages, images = _take_images(prompt.messages)
    texts = [[*message.values()] for message in messages]
    encoded = b"".join(map(msgspec.json.encode, [*texts, prompt.tools] if prompt.tools else texts))
    return encoded, _TOKENS_PER_MESSAGE * len(texts) + _TOKENS_PER_IMAGE * len(images)


def _take_images(messages: Sequence[Json]) -> tuple[tuple[Json, ...], list[str]]:
    """Separate the data URLs from the messages: they may have megabytes, which need not be encoded to be counted."""
    images: list[str] = []

    def take(part: Json) -> Json:
        if part.get("type") != "image_url":
            return part
        images.append(part["image_url"]["url"])
        return {"type": "image_url"}

    contents = [message.get("content") for message in messages]
    if not any(isinstance(content, list) for content in contents):
        return (*messages,), images
    pairs = zip(messages, contents, strict=True)
    return tuple(
        [{**one, "content": [*map(take, parts)]} if isinstance(parts, list) else one for one, parts in pairs]
    ), images


def _add_effort(generation: GenerationRequest) -> Prompt:
    """Add the reasoning effort to the template variables, as engines that render chats do."""
    prompt = generation.prompt
    if generation.effort in (None, "none") or not isinstance(prompt, ChatPrompt):
        return prompt
    return replace(prompt, template_kwargs={"reasoning_effort": generation.effort, **prompt.template_kwargs})


def is_warmup(request: CreateResponse) -> bool:
    options = request.prompt_cache_options
    return not request.generate or (options is not None and options.get("prewarm") is True)


def ensure_user_message(decoded: DecodedRequest, earlier: Sequence[InputItem]) -> DecodedRequest:
    """Append a user message if there is none: many chat templates reject a conversation without one."""
    input_items = decoded.request.input
    if any(isinstance(item, Message) and item.role == "user" for item in chain(earlier, input_items)):
        return decoded
    return replace(decoded, request=replace(decoded.request, input=[*input_items, _PLACEHOLDER_MESSAGE]))


def to_warmup(prepared: PreparedPrompt) -> PreparedPrompt:
    """Reduce the call to a warm-up: the same prompt on the same engine, without constraints or retries."""
    sampling = replace(prepared.generation.sampling, max_tokens=1, logprobs=None, best_of=None)
    generation = replace(prepared.generation, sampling=sampling, constraint=None)
    return replace(prepared, generation=generation, retry_policy=None, is_warmup=True)
