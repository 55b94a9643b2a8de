"""A completion's request → its prompts, and all else as a CreateResponse without input, so that the rules are the same.

No template is applied: the prompt is the caller's, control tokens included.
"""

from typing import Any, Final

from msgspec import Struct

from antiphon.core.dialects.chat.response_format import Asked, asked_format
from antiphon.core.dialects.chat_extensions import REFUSED, Wishes, refuse, wishes
from antiphon.core.dialects.param_names import ChatNames
from antiphon.core.prompt import Segment, TextPrompt, TokenPrompt
from antiphon.errors import AntiphonError, InvalidValue, MissingParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.chat_codec import DecodedGeneration, decode_completion
from antiphon.protocol.decoding.checks import check_request
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.completions import CreateCompletion
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import TextConfig
from antiphon.protocol.types.tools import Json

# What both call by the same name, and mean the same by.
_ALIKE: Final = tuple(
    {*CreateCompletion.__struct_fields__} & {*CreateResponse.__struct_fields__}
    - {"n", "best_of", "stream", "stream_options", "logprobs", "prompt", "priority", "cache_salt", "request_id"}
)  # fmt: skip
_REFUSED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    **REFUSED,
    "suffix": (("",), "No engine here fills in the middle of a text."),
    "prompt_embeds": ((), "Prompts are texts or ids of tokens."),
    "add_special_tokens": ((True,), "To decide on every token, send the prompt as ids of tokens."),
}


class AskedCompletion(Struct, frozen=True, kw_only=True):
    request: CreateCompletion
    prompts: list[TextPrompt | TokenPrompt]
    decoded: Decoded  # all else, as a CreateResponse
    wishes: Wishes  # and what such a one cannot say
    names: ChatNames


def read_completion(body: bytes, limits: Limits) -> AskedCompletion:
    return from_completion(decode_completion(body, limits), limits)


def from_completion(asked: DecodedGeneration[CreateCompletion], limits: Limits) -> AskedCompletion:
    request, sent = asked.request, asked.sent
    refuse(request, sent, _REFUSED)
    _check_stream(request)
    form = asked_format(request, limits)
    names = _names(form)
    given = _given(request, sent, form)
    translated = CreateResponse(**given)
    try:
        check_request(translated, given, limits)
    except AntiphonError as error:
        raise names.told(error) from None
    unused = ["stream_options"] if request.stream_options is not None and not request.stream else []
    wished = wishes(request, form.grammar, form.param, limits)
    return AskedCompletion(
        request=request,
        prompts=_prompts(request, limits),
        decoded=Decoded(translated, frozenset(given), [*asked.ignored, *unused]),
        wishes=wished,
        names=names,
    )


def _check_stream(request: CreateCompletion) -> None:
    if not request.stream:
        return
    if (request.best_of or 1) > (request.n or 1):
        raise _unfit("best_of", "the best answers are known only at the end: send 'stream': false")
    if request.echo and request.logprobs is not None:
        raise _unfit("echo", "the prompt's log probabilities are not streamed: send 'stream': false")


def _given(request: CreateCompletion, sent: frozenset[str], form: Asked) -> Json:
    """The fields of a CreateResponse that were sent."""
    given: Json = {name: getattr(request, name) for name in _ALIKE if name in sent}
    if request.max_tokens is not None:
        given["max_output_tokens"] = request.max_tokens
    if request.logprobs is not None:
        given |= {"logprobs": True, "top_logprobs": request.logprobs}
    if form.format is not None:
        given["text"] = TextConfig(format=form.format)
    return given


def _prompts(request: CreateCompletion, limits: Limits) -> list[TextPrompt | TokenPrompt]:
    given = request.prompt
    if given is None:
        raise MissingParameter("Missing required parameter: 'prompt'.", param="prompt")
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    times = max(request.n or 1, request.best_of or 1)
    if len(several) * times > limits.prompts:
        raise _unfit("prompt", f"at most {limits.prompts} prompts are allowed, times 'n' or 'best_of'")
    return [
        _prompt(prompt, f"prompt[{index}]" if several is given else "prompt") for index, prompt in enumerate(several)
    ]


def _prompt(given: Any, param: str) -> TextPrompt | TokenPrompt:
    if not given and given != 0:
        raise _unfit(param, "it must not be empty")
    if isinstance(given, str):
        return TextPrompt((Segment(given, control=True),))
    if not isinstance(given, list) or any(type(token) is not int for token in given):
        raise _unfit(param, "expected a text, ids of tokens, or a list of either")
    return TokenPrompt(tuple(given))


def _names(form: Asked) -> ChatNames:
    fields = {
        "text.format.schema": form.schema,
        "text.format": form.param,
        "input": "prompt",
        "max_output_tokens": "max_tokens",
        "top_logprobs": "logprobs",
    }
    return ChatNames((), fields)


def _unfit(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{param}': {reason}.", param=param)
