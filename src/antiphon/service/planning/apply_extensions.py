"""Apply the fields that chat completions and completions have beyond `CreateResponse` to the generation request."""

from collections.abc import Iterator

from msgspec.structs import replace

from antiphon.core.dialects.completion_fields import RequestedFormat
from antiphon.protocol.types.completions import CompletionFields
from antiphon.service.planning.validation import unsupported_error
from antiphon.service.prompting.engine_fields import make_salt
from antiphon.service.prompting.prepared_request import PreparedRequest


def apply_extensions(
    prepared_request: PreparedRequest, request: CompletionFields, output_format: RequestedFormat, tenant: str
) -> PreparedRequest:
    """Return the request with these fields applied. Raises UnsupportedParameter for one that the engine does not
    support.
    """
    capabilities, prepared = prepared_request.capabilities, prepared_request.prepared
    for name, param in _list_required_features(request, output_format):
        if name not in capabilities.supported_fields:
            raise unsupported_error(name, capabilities, prepared_request.served.engine.name, param)
    generation = prepared.generation
    sampling = replace(
        generation.sampling,
        logit_bias=request.logit_bias or None,
        min_tokens=request.min_tokens or None,
        stop_token_ids=generation.sampling.stop_token_ids + tuple(request.stop_token_ids or ()),
        prompt_logprobs=request.prompt_logprobs,
        return_token_ids=bool(request.return_token_ids),
    )
    extended = replace(
        generation,
        sampling=sampling,
        constraint=output_format.grammar or generation.constraint,
        salt=generation.salt if request.cache_salt is None else make_salt(tenant, request.cache_salt),
        priority=request.priority or None,
        kv_transfer_params=request.kv_transfer_params,
    )
    return replace(prepared_request, prepared=replace(prepared, generation=extended))


def _list_required_features(request: CompletionFields, output_format: RequestedFormat) -> Iterator[tuple[str, str]]:
    """Yield each engine feature that the request needs, with the field that asked for it."""
    for name in ("logit_bias", "min_tokens", "stop_token_ids", "return_token_ids", "priority"):
        if getattr(request, name):
            yield name, name
    for name in ("prompt_logprobs", "cache_salt", "kv_transfer_params"):
        if getattr(request, name) is not None:
            yield name, name
    if output_format.grammar is not None:
        yield f"grammar.{output_format.grammar.syntax}", output_format.param
