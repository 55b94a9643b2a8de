"""The Response as it stands when a request is accepted: every field that was sent, and the defaults.

What a client sent beyond OpenAI's fields is echoed only when it was sent.
"""

from antiphon.protocol.request import CreateResponse
from antiphon.protocol.response import Response

# What a Response says of its request, word for word; `store` is not here, since it says what was really done.
ECHOED = frozenset({
    "instructions", "metadata", "parallel_tool_calls", "tool_choice", "tools", "temperature", "top_p",
    "presence_penalty", "frequency_penalty", "top_logprobs", "truncation", "text", "reasoning", "max_output_tokens",
    "max_tool_calls", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "user", "background",
    "previous_response_id", "conversation", "prompt",
    # Beyond OpenAI's fields.
    "top_k", "min_p", "repetition_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "n", "best_of",
    "length_penalty", "skip_special_tokens", "chat_template_kwargs", "logprobs", "num_assistant_tokens",
    "assistant_confidence_threshold", "max_ngram_size", "moderation", "image",
    "access_programs", "context_management",
})  # fmt: skip
_CACHE_OPTIONS = {"mode": "implicit", "ttl": "30m"}  # all that OpenAI's types have here, and they want it said


def opening(
    request: CreateResponse, sent: frozenset[str], response_id: str, model: str, created_at: int, *, store: bool
) -> Response:
    """`sent` are the names of the fields that the client sent; the others have the Response's own defaults.

    `store` says whether the response is really kept.
    """
    response = Response(id=response_id, created_at=created_at, model=model, store=store)
    for name in ECHOED & sent:
        setattr(response, name, getattr(request, name))
    if "prompt_cache_options" in sent:
        given = request.prompt_cache_options or {}
        response.prompt_cache_options = {name: given.get(name, usual) for name, usual in _CACHE_OPTIONS.items()}
    response.service_tier = request.service_tier or "default"
    if response.background:
        response.status = "queued"
    return response
