"""Request profiles: everything about a request that does not depend on its input.

A profile is cached with its `CachedRequest` and shared by all equal requests, until the model is served by another
engine or the engine reports new capabilities.
"""

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.emitter.fold import open_response
from antiphon.engines.base import Capabilities
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.response import Response
from antiphon.service.access.service_tiers import get_rank
from antiphon.service.model_io.models import Models
from antiphon.service.model_io.served_model import OutputTokenLimits
from antiphon.service.planning.request_policy import RequestPolicy
from antiphon.service.planning.validation import (
    list_ignored_fields,
    reject_unsupported_by_engine,
    reject_unsupported_fields,
)
from antiphon.service.prompting.call_template import ModelTarget, make_target
from antiphon.service.prompting.warmup import is_warmup
from antiphon.service.tool_loop.toolkit import Toolkit


class RequestProfile(Struct, frozen=True):
    engine_capabilities: Capabilities  # as the engine reported them; the profile is valid as long as they are
    target: ModelTarget
    opening: Response  # template to copy; its id, time and previous response are placeholders
    ignored: list[str]  # names of accepted fields that have no effect
    rank: int  # rank in the queue of the model
    is_warmup: bool  # only warms the engine's prefix cache
    single_turn: bool  # one model call and nothing else, unless the items require more
    needs_store: bool  # background or `wait_for_tool_outputs`
    obfuscates: bool  # deltas are padded


def make_profile(
    decoded: DecodedRequest, target: ModelTarget, engine_capabilities: Capabilities, *, stored: bool, multi_turn: bool
) -> RequestProfile:
    """Build a profile.

    `stored`: the response is stored. `multi_turn`: tools run, or tool outputs are awaited, between turns.
    """
    response = open_response(decoded.request, decoded.sent, "", target.served.name, 0, store=stored)
    request, options = decoded.request, decoded.request.stream_options
    return RequestProfile(
        engine_capabilities=engine_capabilities,
        target=target,
        opening=response,
        ignored=list_ignored_fields(request, decoded.sent),
        rank=get_rank(response),
        is_warmup=is_warmup(request),
        single_turn=not (multi_turn or request.context_management or is_warmup(request) or (request.n or 1) > 1),
        needs_store=bool(request.background or request.wait_for_tool_outputs),
        obfuscates=options is not None and options.include_obfuscation,
    )


class RequestProfiles:
    def __init__(
        self,
        models: Models,
        toolkit: Toolkit,
        policy: RequestPolicy,
        output_limits: OutputTokenLimits,
        store_enabled: bool,
    ) -> None:
        """`store_enabled`: the server stores responses (no --disable-store)."""
        self._models = models
        self._toolkit = toolkit
        self._policy = policy
        self._output_limits = output_limits
        self._store_enabled = store_enabled

    def find_cached(self, decoded: DecodedRequest) -> tuple[DecodedRequest, RequestProfile] | None:
        """Return the request and its cached profile, or None if there is none that is certainly valid."""
        if decoded.cached is None or decoded.cached.profile is None:
            return None
        profile: RequestProfile = decoded.cached.profile
        if not (profile.engine_capabilities.validity.valid and profile.target.served.validity.valid):
            return None
        decoded.request.service_tier = profile.opening.service_tier
        return decoded, profile

    async def load(self, decoded: DecodedRequest, opening: Response | None) -> tuple[DecodedRequest, RequestProfile]:
        """Return the effective request and its profile, from the cache or newly built.

        `opening`: the stored Response of a resumed run, whose service tier is reused. Raises for invalid requests.
        """
        cached, request = decoded.cached, decoded.request
        if cached is not None and cached.profile is not None and await self._is_current(cached.profile):
            request.service_tier = cached.profile.opening.service_tier
            return decoded, cached.profile
        effective = decoded
        if opening is None:
            effective = await self._policy.apply(decoded)
        else:
            request.service_tier = opening.service_tier
        if effective is not decoded:  # the policy changed the request, so the cached one no longer applies
            return (effective := replace(effective, cached=None)), await self._build(effective)
        profile = await self._build(decoded)
        if cached is not None:
            cached.profile = profile
        return decoded, profile

    async def _is_current(self, profile: RequestProfile) -> bool:
        served = profile.target.served
        current = self._models.find(served.name)
        return current is served and await current.engine.capabilities(current.model) is profile.engine_capabilities

    async def _build(self, decoded: DecodedRequest) -> RequestProfile:
        request = decoded.request
        reject_unsupported_fields(request, decoded.sent)
        self._toolkit.check_mcp_servers(request)
        served = self._models.find(request.model)
        engine_capabilities = await served.engine.capabilities(served.model)
        capabilities = await served.extend_capabilities(engine_capabilities)
        reject_unsupported_by_engine(request, decoded.sent, capabilities, served.engine.name)
        stored = self._store_enabled and request.store is not False
        multi_turn = self._toolkit.runs_tools(request) or self._toolkit.should_wait(request, stored)
        return make_profile(
            decoded,
            make_target(decoded, served, capabilities, self._output_limits),
            engine_capabilities,
            stored=stored,
            multi_turn=multi_turn,
        )
