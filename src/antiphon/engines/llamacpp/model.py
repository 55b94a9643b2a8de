"""A GGUF file that generates with llama.cpp: its constraints are checked before the first use."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

from antiphon.core.multi_match import MultiStringMatcher
from antiphon.core.prompt import IMAGE_MARKER, GenerationRequest, Json, TextPrompt
from antiphon.engines.embedded.model import LocalModel, cache_put
from antiphon.engines.embedded.process import RunningChild
from antiphon.engines.embedded.wire import EVENT_DECODER, encode
from antiphon.engines.gguf import GgufHeader
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.child import LlamaCppLaunch
from antiphon.engines.llamacpp.wire import LlamaCppConstraint, to_llamacpp_constraint
from antiphon.errors import InvalidValue

MAX_CACHED_CONSTRAINTS = 256
LOG_LAG_SECONDS = 0.25

# Text that no JSON begins with, for models without control tokens. If the model emits a token that the grammar forbids,
# the grammar is not enforced.
FORBIDDEN_TEXT = "Z"


class LlamaCppModel(LocalModel):
    supported_fields = wire.SUPPORTED_FIELDS
    unsupported_reasons: ClassVar[dict[str, str]] = wire.UNSUPPORTED_REASONS

    def __init__(
        self, id: str, header: GgufHeader, launch: LlamaCppLaunch, load_timeout: float, idle_timeout: float
    ) -> None:
        super().__init__(id, header, launch, load_timeout, idle_timeout)
        if launch.projector:
            self.supported_fields = wire.SUPPORTED_FIELDS | {"input_image"}
        self._lookalikes = MultiStringMatcher([*self._special_tokens.texts, IMAGE_MARKER] if launch.projector else [])
        # digest → why the constraint cannot be enforced, or ""
        self._constraint_errors: OrderedDict[bytes, str] = OrderedDict()
        self._constraint_lock = asyncio.Lock()

    async def build_completion(self, request: GenerationRequest, tokens: Sequence[int]) -> Json:
        constraint = to_llamacpp_constraint(request.constraint, bounded=True)
        if constraint.fails_silently:
            await self._check_constraint(constraint)
        prompt = request.prompt
        return wire.build_completion(
            self._build_image_prompt(prompt) if isinstance(prompt, TextPrompt) and prompt.images else tokens,
            request.sampling,
            constraint,
            self.list_visible_tokens(request),
            use_cache=request.salt is None,
        )

    def _build_image_prompt(self, prompt: TextPrompt) -> Json:
        """Build a prompt with images.

        llama.cpp tokenizes its text as a whole, so what looks like a special token in the text of users, tools and
        files gets a gap. It adds the BOS itself.
        """
        texts = [one.text if one.control else self._lookalikes.insert_gaps(one.text) for one in prompt.segments]
        text = "".join(texts)
        return {
            "prompt_string": text.removeprefix(self._header.bos) if self._prefix_tokens else text,
            "multimodal_data": [wire.read_image(url) for url in prompt.images],
        }

    async def _check_constraint(self, constraint: LlamaCppConstraint) -> None:
        """Raise `InvalidValue` if the constraint cannot be enforced.

        llama.cpp generates without a constraint if llguidance cannot compile it, and reports that only in its log.
        """
        key = hashlib.sha256(encode(constraint)).digest()
        async with self._constraint_lock:
            if (reason := self._constraint_errors.get(key)) is None:
                reason = await self._probe_constraint(constraint)
            cache_put(self._constraint_errors, key, reason, MAX_CACHED_CONSTRAINTS)
        if reason:
            raise InvalidValue(reason, param="text.format.schema" if constraint.schema is not None else "text.format")

    async def _probe_constraint(self, constraint: LlamaCppConstraint) -> str:
        """Return why the constraint cannot be enforced, or ""."""
        prompt = await self.tokenize_content(FORBIDDEN_TEXT, add_special=False)
        control_tokens = self._header.control_tokens.values() if constraint.schema is None else ()
        forbidden = next(iter(control_tokens), FORBIDDEN_TEXT)
        body = encode(wire.build_probe(prompt, constraint, forbidden))
        return await self.call_child(lambda running: _run_probe(running, body, constraint, forbidden))


async def _run_probe(running: RunningChild, body: bytes, constraint: LlamaCppConstraint, forbidden: int | str) -> str:
    """Return why the constraint of this probe request is not enforced, or "" if it is."""
    position = running.child.line_count
    reply = await running.client.post("/completion", body, EVENT_DECODER)
    if not (reply.tokens[:1] == [forbidden] or reply.content.strip().startswith(str(forbidden))):
        return ""
    line = await running.child.find_in_log("llg error", position, LOG_LAG_SECONDS)
    if constraint.schema is not None:
        _, _, reason = line.partition("failed to compile JSON schema: ")
        return f"This schema cannot be enforced: {reason or 'the engine gave no reason'}."
    # no such log line: the grammar itself begins with the forbidden token
    _, failed, reason = line.partition("llg error: ")
    return f"This grammar cannot be enforced: {reason}." if failed else ""
