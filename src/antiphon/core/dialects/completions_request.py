"""A completion request → its prompts, and all other fields as a CreateResponse without input, so that the same rules
apply.

No template is applied: the prompt belongs to the caller, control tokens included.
"""

from typing import Any, Final

from msgspec import Struct

from antiphon.core.dialects import completion_fields
from antiphon.core.dialects.translation import ChatParamNames, build_request
from antiphon.core.prompt import Segment, TextPrompt, TokenPrompt
from antiphon.errors import invalid_value, missing_parameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.decoding.dialect_codecs import decode_completion
from antiphon.protocol.decoding.part_cache import TenantParts
from antiphon.protocol.types.completions import CreateCompletion
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import TextConfig
from antiphon.protocol.types.tools import Json

# Fields with the same name and meaning in both APIs.
_SHARED_FIELDS: Final = tuple(
    {*CreateCompletion.__struct_fields__} & {*CreateResponse.__struct_fields__}
    - {"n", "best_of", "stream", "stream_options", "logprobs", "prompt", "priority", "cache_salt", "request_id"}
)  # fmt: skip
_UNSUPPORTED_FIELDS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    **completion_fields.UNSUPPORTED_FIELDS,
    "suffix": (("",), "Fill-in-the-middle is not supported."),
    "prompt_embeds": ((), "Prompts must be text or token ids."),
    "add_special_tokens": ((True,), "To control every token, send the prompt as token ids."),
}


class CompletionRequest(Struct, frozen=True, kw_only=True):
    request: CreateCompletion
    prompts: list[TextPrompt | TokenPrompt]
    decoded: DecodedRequest  # the other fields as a CreateResponse
    output_format: completion_fields.RequestedFormat
    names: ChatParamNames


def read_completion(body: bytes, limits: Limits, cache: TenantParts | None = None) -> CompletionRequest:
    """`cache` is not used: completions have no tools."""
    decoded = decode_completion(body, limits)
    request, sent = decoded.request, decoded.sent
    completion_fields.reject_unsupported(request, sent, _UNSUPPORTED_FIELDS)
    _check_stream(request)
    output_format = completion_fields.read_format(request, limits)
    names = _param_names(output_format)
    fields = _response_fields(request, sent, output_format)
    unused = ["stream_options"] if request.stream_options is not None and not request.stream else []
    translated = build_request(fields, [*decoded.ignored, *unused], names, limits)
    completion_fields.check_fields(request, limits)
    return CompletionRequest(
        request=request,
        prompts=_to_prompts(request, limits),
        decoded=translated,
        output_format=output_format,
        names=names,
    )


def _check_stream(request: CreateCompletion) -> None:
    if not request.stream:
        return
    if (request.best_of or 1) > (request.n or 1):
        raise invalid_value("best_of", "the best answers are known only at the end: send 'stream': false")
    if request.echo and request.logprobs is not None:
        raise invalid_value("echo", "the prompt's log probabilities are not streamed: send 'stream': false")


def _response_fields(
    request: CreateCompletion, sent: frozenset[str], output_format: completion_fields.RequestedFormat
) -> Json:
    fields: Json = {name: getattr(request, name) for name in _SHARED_FIELDS if name in sent}
    if request.max_tokens is not None:
        fields["max_output_tokens"] = request.max_tokens
    if request.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": request.logprobs}
    if output_format.format is not None:
        fields["text"] = TextConfig(format=output_format.format)
    return fields


def _to_prompts(request: CreateCompletion, limits: Limits) -> list[TextPrompt | TokenPrompt]:
    if (prompt_field := request.prompt) is None:
        raise missing_parameter("prompt")
    prompts = (
        prompt_field
        if isinstance(prompt_field, list) and prompt_field and not isinstance(prompt_field[0], int)
        else [prompt_field]
    )
    answers = max(request.n or 1, request.best_of or 1)
    if len(prompts) * answers > limits.prompts:
        raise invalid_value("prompt", f"at most {limits.prompts} prompts are allowed, times 'n' or 'best_of'")
    return [
        _to_prompt(prompt, f"prompt[{index}]" if prompts is prompt_field else "prompt")
        for index, prompt in enumerate(prompts)
    ]


def _to_prompt(value: Any, param: str) -> TextPrompt | TokenPrompt:
    if value in ("", []):
        raise invalid_value(param, "it must not be empty")
    if isinstance(value, str):
        return TextPrompt((Segment(value, control=True),))
    if not isinstance(value, list) or any(type(token) is not int for token in value):
        raise invalid_value(param, "expected a text, token ids, or a list of either")
    return TokenPrompt(tuple(value))


def _param_names(output_format: completion_fields.RequestedFormat) -> ChatParamNames:
    fields = {
        "text.format.schema": output_format.schema_param,
        "text.format": output_format.param,
        "input": "prompt",
        "max_output_tokens": "max_tokens",
        "top_logprobs": "logprobs",
    }
    return ChatParamNames((), fields)
