"""Apply the fields that chat completions and completions have beyond `CreateResponse` to the generation request."""

from collections.abc import Iterator

from msgspec.structs import replace

from antiphon.core.dialects.chat_extensions import ChatExtensions
from antiphon.service.encryption.cache_salt import make_salt
from antiphon.service.planning.validation import unsupported_error
from antiphon.service.prompting.prepared_request import PreparedRequest


def apply_extensions(prepared_request: PreparedRequest, extensions: ChatExtensions, tenant: str) -> PreparedRequest:
    """Return the request with the extensions applied. Raises UnsupportedParameter for one that the engine does not
    support.
    """
    capabilities, prepared = prepared_request.capabilities, prepared_request.prepared
    for name, param in _list_required_features(extensions):
        if name not in capabilities.supported_fields:
            raise unsupported_error(name, capabilities, prepared_request.served.engine.name, param)
    generation = prepared.generation
    sampling = replace(
        generation.sampling,
        logit_bias=extensions.logit_bias,
        min_tokens=extensions.min_tokens,
        stop_token_ids=generation.sampling.stop_token_ids + extensions.stop_token_ids,
        prompt_logprobs=extensions.prompt_logprobs,
        return_token_ids=extensions.return_token_ids,
    )
    extended = replace(
        generation,
        sampling=sampling,
        constraint=extensions.grammar or generation.constraint,
        salt=generation.salt if extensions.cache_salt is None else make_salt(tenant, extensions.cache_salt),
        priority=extensions.priority,
        kv_transfer_params=extensions.kv_transfer_params,
    )
    return replace(prepared_request, prepared=replace(prepared, generation=extended))


def _list_required_features(extensions: ChatExtensions) -> Iterator[tuple[str, str]]:
    """Yield each engine feature that the extensions require, with the request field that asked for it."""
    for name in ("logit_bias", "min_tokens", "stop_token_ids", "return_token_ids", "priority"):
        if getattr(extensions, name):
            yield name, name
    for name in ("prompt_logprobs", "cache_salt", "kv_transfer_params"):
        if getattr(extensions, name) is not None:
            yield name, name
    if extensions.grammar is not None:
        yield f"grammar.{extensions.grammar.syntax}", extensions.grammar_param
