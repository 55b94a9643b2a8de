"""Engine fields that OpenAI's API does not have: rejected by name unless the server runs with --compat off.

Otherwise they are passed to the engine under its own field names. A field that the engine does not support is rejected
in planning/validation.py.
"""

import logging
import re
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct, ValidationError
from msgspec.structs import replace

from antiphon.config.areas import CacheKeyUse
from antiphon.core.dialects.chat_items import to_items
from antiphon.core.prompt import GenerationRequest
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.decoding.dialect_codecs import normalise_messages
from antiphon.protocol.decoding.error_messages import explain
from antiphon.protocol.types.chat.request import ChatMessageIn
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.access.api_keys import DEFAULT_TENANT

# Each field with its alternative where it is rejected.
FIELDS: Final = {
    "request_id": "Send the header x-request-id.",
    "priority": "Send a `service_tier`.",
    "cache_salt": "`prompt_cache_key` is accepted.",
    "mm_processor_kwargs": "",
    "previous_input_messages": "Put them into `input`.",
    "enable_response_messages": "",
}
ENGINE_ONLY: Final = ("mm_processor_kwargs", "request_id")  # the others are also available through chat completions
_PREVIOUS_MESSAGES = "previous_input_messages"
_HARMONY_FIELDS = ("author", "channel", "recipient")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")

log = logging.getLogger(__name__)


class _PreviousMessages(Struct):
    previous_input_messages: list[ChatMessageIn]


def reject_fields(request: CreateResponse, sent: frozenset[str]) -> None:
    for name in sorted(FIELDS.keys() & sent):  # sorted, so that equal requests get equal errors
        if getattr(request, name):
            sentence = f"'{name}' is accepted only by a server that was started with --compat off."
            raise UnsupportedParameter(f"{sentence} {FIELDS[name]}".rstrip(), param=name)


def accept_fields(decoded: DecodedRequest) -> DecodedRequest:
    """Validate the fields and move `previous_input_messages` to the front of the input."""
    request, sent = decoded.request, decoded.sent
    if "request_id" in sent and not _REQUEST_ID.fullmatch(request.request_id or ""):
        raise InvalidValue(
            "Invalid value for 'request_id': 1 to 128 letters, digits, '.', '_' or '-' expected.", param="request_id"
        )
    if request.cache_salt == "":
        raise InvalidValue("Invalid value for 'cache_salt': it must not be empty.", param="cache_salt")
    if request.cache_salt is not None and request.prompt_cache_key is not None:
        log.warning("A request has both cache_salt and prompt_cache_key: cache_salt is used.")
    if not request.previous_input_messages:
        return decoded
    items = to_items(_parse_messages(request), _PREVIOUS_MESSAGES).items
    extended = replace(request, input=[*items, *request.input], previous_input_messages=None)
    return replace(decoded, request=extended, sent=sent - {_PREVIOUS_MESSAGES} | {"input"})


def apply_engine_fields(
    tenant: str, request: CreateResponse, generation: GenerationRequest, cache_key_use: CacheKeyUse
) -> GenerationRequest:
    """Add the engine fields and the salt that separates the prefix caches of tenants and of the client's keys."""
    client_salt, request_id, processor_kwargs = request.cache_salt, request.request_id, request.mm_processor_kwargs
    key = request.prompt_cache_key if cache_key_use == "salt" else None
    has_fields = client_salt is not None or request_id is not None or request.priority or processor_kwargs
    if tenant == DEFAULT_TENANT and key is None and not has_fields:
        return generation
    combined_salt = make_salt(tenant, client_salt or key)
    generation = replace(
        generation,
        salt=combined_salt,
        request_id=None if request_id is None else _scope_request_id(tenant, request_id),
        priority=request.priority or None,
        mm_processor_kwargs=processor_kwargs or None,
    )
    if client_salt is not None:
        generation = replace(generation, cache_key=None, affinity=combined_salt)
    return generation


def make_salt(tenant: str, client_salt: str | None = None) -> str | None:
    """Return the salt that separates the prefix caches of tenants; None means that the cache is shared.

    The time to the first token must not reveal other tenants' prompts. A client's own salt also separates it from
    others of its tenant. It is hashed with the tenant, so it cannot be reused by another tenant.
    """
    if tenant == DEFAULT_TENANT and client_salt is None:
        return None
    name, own = tenant.encode(), b"" if client_salt is None else b":" + client_salt.encode("utf-8", "surrogatepass")
    material = b"%d:%b%b" % (len(name), name, own)
    return blake2b(material, digest_size=16, person=b"antiphon-salt").hexdigest()


def _scope_request_id(tenant: str, request_id: str) -> str:
    """Append a tenant suffix, so that tenants cannot use each other's request ids."""
    tenant_salt = make_salt(tenant)
    return request_id if tenant_salt is None else f"{request_id}-{tenant_salt[:8]}"


def _parse_messages(request: CreateResponse) -> list[ChatMessageIn]:
    messages = request.previous_input_messages or []
    for index, message in enumerate(messages):
        if found := [name for name in _HARMONY_FIELDS if name in message]:
            raise UnsupportedParameter(
                "Harmony messages are not accepted: send chat completion messages, the format of `output_messages`.",
                param=f"{_PREVIOUS_MESSAGES}[{index}].{found[0]}",
            )
    body = {_PREVIOUS_MESSAGES: messages}
    normalise_messages(messages)
    try:
        return msgspec.convert(body, _PreviousMessages).previous_input_messages
    except ValidationError as error:
        raise explain(error, body, _PreviousMessages) from None
