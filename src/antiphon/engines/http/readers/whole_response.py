"""Reads unstreamed responses of `/v1/chat/completions` and `/v1/completions` into Chunks."""

from typing import Any

from antiphon.core.prompt import Chunk, EngineExtras, Sampling
from antiphon.engines.http.readers.chat_reader import FINISHES, ChatCompletionReader
from antiphon.engines.http.readers.completion_reader import TextCompletionReader
from antiphon.engines.http.readers.wire import FULL_COMPLETION, TEXT_COMPLETION, FullCompletion, counts_from_usage
from antiphon.errors import EngineFailed

_NO_EXTRAS = (None,) * 5


def parse_chat_response(label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
    """Read an unstreamed chat completion. Most are a text and nothing else, so that is checked first."""
    completion = FULL_COMPLETION.decode(data)
    if completion.error is None and completion.choices is not None and len(completion.choices) == 1:
        choice = completion.choices[0]
        message, finish = choice.message, FINISHES.get(choice.finish_reason or "")
        if message is not None and message.content and finish is not None and not (
            choice.delta or choice.logprobs or choice.token_ids
            or choice.stop_reason is not None or choice.matched_stop is not None
            or message.reasoning_content or message.reasoning or message.tool_calls or message.refusal
            or message.function_call
            or completion.prompt_logprobs is not None or completion.prompt_token_ids is not None
            or completion.kv_transfer_params is not None
        ):  # fmt: skip
            fingerprint, tier, extras = completion.system_fingerprint, completion.service_tier, None
            if fingerprint is not None or tier is not None:
                extras = EngineExtras(system_fingerprint=fingerprint, service_tier=tier)
            return [
                Chunk(text=message.content, finish=finish, counts=counts_from_usage(completion.usage), extras=extras)
            ]
    return read_chat_completion(label, completion, sampling)


def read_chat_completion(label: str, completion: FullCompletion, sampling: Sampling) -> list[Chunk]:
    choice = _best_choice(label, completion)
    chunks = ChatCompletionReader(label, sampling, None, True).read_whole(choice)
    return _complete_chunks(chunks, completion, completion.prompt_logprobs, completion.prompt_token_ids)


def parse_text_response(label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
    """Read an unstreamed completion of a raw prompt."""
    completion = TEXT_COMPLETION.decode(data)
    choice = _best_choice(label, completion)
    chunks = TextCompletionReader(label, sampling, None, True).read_whole(choice)
    return _complete_chunks(chunks, completion, choice.prompt_logprobs, None)


def _best_choice(label: str, completion: Any) -> Any:
    """Return the first of several choices, which is the best."""
    if completion.error is not None:
        raise EngineFailed(f"{label} returned an error with a success status.")
    if not completion.choices:
        raise EngineFailed(f"{label} returned a response without choices.")
    choice = min(completion.choices, key=lambda choice: choice.index or 0)
    choice.index = 0
    return choice


def _complete_chunks(
    chunks: list[Chunk], completion: Any, prompt_logprobs: Any, prompt_token_ids: list[int] | None
) -> list[Chunk]:
    """Set the counts and the extras of the response on the last chunk."""
    last = chunks[-1]
    last.counts = counts_from_usage(completion.usage)
    last.extras = _merge_extras(completion, last.extras, prompt_logprobs, prompt_token_ids)
    return chunks


def _merge_extras(
    completion: Any, extras: EngineExtras | None, prompt_logprobs: Any, prompt_token_ids: list[int] | None
) -> EngineExtras | None:
    """Return the extras with the additional fields of an unstreamed response; most engines send none."""
    transfer, fingerprint = completion.kv_transfer_params, completion.system_fingerprint
    tier = completion.service_tier
    if (prompt_logprobs, prompt_token_ids, transfer, fingerprint, tier) == _NO_EXTRAS:
        return extras
    return EngineExtras(
        stop_reason=None if extras is None else extras.stop_reason,
        prompt_logprobs=prompt_logprobs,
        prompt_token_ids=prompt_token_ids,
        kv_transfer_params=transfer,
        system_fingerprint=fingerprint,
        service_tier=tier,
    )
