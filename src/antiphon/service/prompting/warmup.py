"""Warming up: the engine reads a prompt, so that what continues it is answered sooner, and nothing is said.

It asks for one token, since no engine can be asked for none, and drops it.
"""

from collections.abc import Sequence
from itertools import chain

from msgspec.structs import replace

from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.items import InputItem, InputText, Message
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.prompting.prepare import Prepared

_WORD = Message(role="user", content=[InputText(text="Hello.")])


def warms(request: CreateResponse) -> bool:
    options = request.prompt_cache_options
    return not request.generate or (options is not None and options.get("prewarm") is True)


def spoken_to(decoded: Decoded, earlier: Sequence[InputItem]) -> Decoded:
    """With a word of the user's, if there is none: the templates of many models take no conversation without one."""
    given = decoded.request.input
    if any(isinstance(item, Message) and item.role == "user" for item in chain(earlier, given)):
        return decoded
    return replace(decoded, request=replace(decoded.request, input=[*given, _WORD]))


def warming(prepared: Prepared) -> Prepared:
    """The same prompt at the same place; nothing is demanded of an answer that nobody hears."""
    sampling = replace(prepared.work.sampling, max_tokens=1, logprobs=None, best_of=None)
    work = replace(prepared.work, sampling=sampling, constraint=None)
    return replace(prepared, work=work, insists=None, warms=True)
