"""Images: chooses the image service of a request, admits the request, and enforces the service's deadline.

The first service that has the model and honours all fields is used; one that does not respond only if there is no
other. The services are probed periodically; /ready reports how many respond, but is not 503 for them.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import Struct

from antiphon.admission import Admission
from antiphon.config import Config
from antiphon.core.image_generation import ImageRequest, ImageResult, PartialImage
from antiphon.egress import EgressClient
from antiphon.errors import AntiphonError, BadRequest, EngineFailed, ModelNotFound, UnsupportedParameter
from antiphon.image_services.base import ImageService, check_request
from antiphon.image_services.registry import IMAGE_SERVICES
from antiphon.plugins import load_reference
from antiphon.service.access.charges import spend

log = logging.getLogger(__name__)

NOT_CONFIGURED = "This server has no image service; its operator can configure one with --image-service."
_PROBE_INTERVAL = 30.0


class _Member(Struct, eq=False):
    service: ImageService
    admission: Admission
    is_healthy: bool = True


class Images:
    """The image services of this server."""

    def __init__(self, services: Sequence[ImageService], queue: int) -> None:
        self._members = [_Member(service, Admission(service.slots, queue)) for service in services]

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def models(self) -> list[str]:
        """The names of models that the operator has configured."""
        return [*dict.fromkeys([name for member in self._members for name in member.service.models])]

    def count_healthy(self) -> tuple[int, int]:
        """Return how many services respond, and how many there are."""
        return sum([member.is_healthy for member in self._members]), len(self._members)

    def list_health(self) -> dict[str, float]:
        return {member.service.name: member.is_healthy for member in self._members}

    def count_running(self) -> dict[str, float]:
        return {member.service.name: member.admission.running for member in self._members}

    def check_configured(self) -> None:
        """Raise UnsupportedParameter if there is no service."""
        if not self._members:
            raise UnsupportedParameter(NOT_CONFIGURED)

    def check(self, request: ImageRequest, param: str) -> None:
        self._find(request, f"{param}." if param and not param.endswith(".") else param)

    def list_ignored(self, request: ImageRequest) -> list[str]:
        """Check a request, and return the names of the fields that have no effect."""
        return self._find(request, "").service.list_ignored(request)

    async def generate(self, tenant: str, request: ImageRequest) -> AsyncGenerator[PartialImage | ImageResult, None]:
        member = self._find(request, "")
        service = member.service
        deadline = asyncio.get_running_loop().time() + service.timeout
        with member.admission.enter(tenant) as ticket:
            async with aclosing(service.generate(request)) as events:
                try:
                    async with asyncio.timeout_at(deadline):
                        await ticket.wait_turn()
                    while True:
                        async with asyncio.timeout_at(deadline):
                            event = await anext(events)
                        if isinstance(event, ImageResult):
                            break
                        yield event
                except TimeoutError:
                    raise EngineFailed(f"No image was made within {service.timeout:.0f} seconds.") from None
        if event.usage is not None:
            spend(event.usage.input_tokens + event.usage.output_tokens)
        yield event

    def _find(self, request: ImageRequest, param: str) -> _Member:
        """Choose the service. Raises BadRequest or ModelNotFound."""
        self.check_configured()
        check_request(request, param)
        fitting: list[_Member] = []
        refusal: BadRequest | None = None
        for member in self._list_members(request.model, param):
            try:
                member.service.check(request, param)
                fitting.append(member)
            except BadRequest as error:
                refusal = refusal or error
        if refusal is not None and not fitting:
            raise refusal
        return next((member for member in fitting if member.is_healthy), fitting[0])

    def _list_members(self, model: str | None, param: str) -> list[_Member]:
        members = self._members
        named = [member for member in members if model is None or model in member.service.models]
        if found := named or [member for member in members if not member.service.models]:
            return found
        raise ModelNotFound(
            f"No image service has the model '{(model or '')[:80]}'. Models: {', '.join(self.models)[:500]}.",
            param=f"{param}model",
        )

    async def run_forever(self) -> None:
        """Probe the services."""
        while self._members:
            await asyncio.gather(*map(self._probe, self._members))
            await asyncio.sleep(_PROBE_INTERVAL)

    async def _probe(self, member: _Member) -> None:
        was_healthy = member.is_healthy
        try:
            await member.service.probe()
            member.is_healthy = True
        except AntiphonError as error:
            member.is_healthy = False
            if was_healthy:
                log.warning("%s", error.message)

    async def close(self) -> None:
        for member in self._members:
            await member.service.close()


def make_images(config: Config, egress: EgressClient) -> Images:
    """Create the image services. Raises StartupError."""
    services: list[ImageService] = []
    for spec in config.images.load_specs():
        services.append(load_reference(IMAGE_SERVICES[spec.kind])(spec, egress))
    return Images(services, config.server.queue)
