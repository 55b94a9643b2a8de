"""Fields that engines know and OpenAI's API does not: refused by name, unless the operator said --compat off.

Then they go to the engine under its own name for them. One that the engine has no name for is refused in honesty.py.
"""

import logging
from typing import Final

import msgspec
from msgspec import Struct, ValidationError
from msgspec.structs import replace

from antiphon.core.dialects.chat.items import chat_items
from antiphon.core.prompt import Work
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.protocol.decoding.chat_codec import normalise_messages
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.decoding.error_messages import explain
from antiphon.protocol.types.chat.request import ChatMessageIn
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.encryption.cache_salt import TENANT, salt

# Of each, what does as well where it is not taken.
FIELDS: Final = {
    "request_id": "Send the header x-request-id.",
    "priority": "Send a `service_tier`.",
    "cache_salt": "`prompt_cache_key` is accepted.",
    "mm_processor_kwargs": "",
    "previous_input_messages": "Put them into `input`.",
    "enable_response_messages": "",
}
ENGINE_ONLY: Final = ("mm_processor_kwargs", "request_id")  # the others have their way by chat, too
_BEFORE = "previous_input_messages"
_HARMONY = ("author", "channel", "recipient")
_ID_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_LONGEST_ID = 128

log = logging.getLogger(__name__)


class _Before(Struct):
    previous_input_messages: list[ChatMessageIn]


def refuse(request: CreateResponse, sent: frozenset[str]) -> None:
    for name in sorted(FIELDS.keys() & sent):  # so that the same request is always refused in the same words
        if getattr(request, name):
            sentence = f"'{name}' is taken only by a server that was started with --compat off."
            raise UnsupportedParameter(f"{sentence} {FIELDS[name]}".rstrip(), param=name)


def taken(decoded: Decoded) -> Decoded:
    """With earlier messages in its input; what is ill-formed is refused."""
    request, sent = decoded.request, decoded.sent
    if "request_id" in sent and not _is_id(request.request_id or ""):
        raise InvalidValue(
            f"Invalid value for 'request_id': 1 to {_LONGEST_ID} letters, digits, '.', '_' or '-' are expected.",
            param="request_id",
        )
    if request.cache_salt == "":
        raise InvalidValue("Invalid value for 'cache_salt': it must not be empty.", param="cache_salt")
    if request.cache_salt is not None and request.prompt_cache_key is not None:
        log.warning("A request has both cache_salt and prompt_cache_key: the salt counts.")
    if not request.previous_input_messages:
        return decoded
    items = chat_items(_messages(request), _BEFORE).items
    given = replace(request, input=[*items, *request.input], previous_input_messages=None)
    return replace(decoded, request=given, sent=sent - {_BEFORE} | {"input"})


def asks_nothing(request: CreateResponse) -> bool:
    """Nothing that goes to the engine under its own name."""
    return (
        request.cache_salt is None
        and request.request_id is None
        and not (request.priority or request.mm_processor_kwargs)
    )


def granted(tenant: str, request: CreateResponse, work: Work) -> Work:
    """With what the engine is to be told, and with what keeps its tenant's cache apart."""
    if tenant == TENANT and asks_nothing(request):
        return work
    own, name, reads = request.cache_salt, request.request_id, request.mm_processor_kwargs
    salted = salt(tenant, own)
    work = replace(
        work,
        salt=salted,
        request_id=None if name is None else _named(tenant, name),
        priority=request.priority or None,
        mm_processor_kwargs=reads or None,
    )
    if own is not None:
        work = replace(work, cache_key=None, affinity=salted)
    return work


def _named(tenant: str, name: str) -> str:
    """Nobody can take the name of another tenant's request."""
    apart = salt(tenant)
    return name if apart is None else f"{name}-{apart[:8]}"


def _messages(request: CreateResponse) -> list[ChatMessageIn]:
    given = request.previous_input_messages or []
    for index, message in enumerate(given):
        if found := [name for name in _HARMONY if name in message]:
            raise UnsupportedParameter(
                "Messages of Harmony are not taken: send those of chat completions, which `output_messages` are too.",
                param=f"{_BEFORE}[{index}].{found[0]}",
            )
    body = {_BEFORE: given}
    normalise_messages(given)
    try:
        return msgspec.convert(body, _Before).previous_input_messages
    except ValidationError as error:
        raise explain(error, body, _Before) from None


def _is_id(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_ID and _ID_CHARACTERS.issuperset(name)
