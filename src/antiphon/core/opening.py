"""The Response as it stands when a request is accepted: every field that was sent, and the defaults.

What a client sent beyond OpenAI's fields is echoed only when it was sent.
"""

from antiphon.protocol.request import CreateResponse
from antiphon.protocol.response import Response

_EXTENSIONS = frozenset({
    "top_k", "min_p", "repetition_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "n", "best_of",
    "length_penalty", "skip_special_tokens", "chat_template_kwargs", "logprobs", "num_assistant_tokens",
    "assistant_confidence_threshold", "max_ngram_size", "prompt_cache_options", "moderation", "image",
    "access_programs",
})  # fmt: skip


def opening(request: CreateResponse, sent: frozenset[str], response_id: str, model: str, created_at: int) -> Response:
    """`sent` are the names of the fields that the client sent."""
    response = Response(
        id=response_id,
        created_at=created_at,
        model=model,
        instructions=request.instructions,
        metadata=request.metadata,
        parallel_tool_calls=request.parallel_tool_calls,
        tool_choice=request.tool_choice,
        tools=request.tools,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        top_logprobs=request.top_logprobs or 0,
        truncation=request.truncation,
        text=request.text,
        reasoning=request.reasoning,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        prompt_cache_retention=request.prompt_cache_retention,
        user=request.user,
        store=False,  # nothing is kept yet, and a client should not believe otherwise
    )
    for name in _EXTENSIONS & sent:
        setattr(response, name, getattr(request, name))
    return response
