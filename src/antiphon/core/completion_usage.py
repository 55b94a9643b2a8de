"""Counts of an exchange → the usage of a chat completion or a completion, and an error → the last thing in a stream."""

from msgspec import UNSET

from antiphon.core.prompt import Counts
from antiphon.errors import AntiphonError
from antiphon.protocol.chat_answers import (
    CompletionTokensDetails,
    CompletionUsage,
    PromptTokensDetails,
    StreamFault,
)
from antiphon.protocol.events import ErrorBody


def completion_usage(counts: Counts) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=counts.input_tokens,
        completion_tokens=counts.output_tokens,
        total_tokens=counts.input_tokens + counts.output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=counts.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=counts.reasoning_tokens),
    )


def stream_fault(error: AntiphonError) -> StreamFault:
    return StreamFault(
        error=ErrorBody(message=error.message, type=error.type, param=error.param, code=error.code),
        retry_after=UNSET if error.retry_after is None else error.retry_after,
    )
