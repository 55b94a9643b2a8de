"""Asking the service without a transport: a request as it comes over the wire, and what the answer says."""

from typing import Any

import msgspec

from antiphon.agent.patience import Deadlines
from antiphon.engines.fake import FakeEngine
from antiphon.limits import Limits
from antiphon.observe import Metrics
from antiphon.protocol.codec import decode_create
from antiphon.protocol.events import Event
from antiphon.protocol.items import Message, OutputText
from antiphon.protocol.response import Response
from antiphon.service.models import Models
from antiphon.service.prepare import OutputTokens
from antiphon.service.responses import Accepted, Responses


def service(engine: FakeEngine, room: OutputTokens | None = None, queue: int = 4) -> Responses:
    models = Models([engine], (), accept_any=False, queue=queue)
    return Responses(models, room or OutputTokens(), Deadlines(), Metrics("test"))


async def accepted(responses: Responses, **body: Any) -> Accepted:
    body = {"model": "fake", "input": "hi", **body}
    return await responses.create(decode_create(msgspec.json.encode(body), Limits()))


async def answered(responses: Responses, **body: Any) -> Response:
    return await (await accepted(responses, **body)).run.result()


async def streamed(responses: Responses, **body: Any) -> list[Event]:
    heard: list[Event] = []

    async def tell(events: list[Event]) -> None:
        heard.extend(events)

    await (await accepted(responses, stream=True, **body)).run.drive(tell)
    return heard


def text_of(response: Response) -> str:
    (message,) = [item for item in response.output if isinstance(item, Message)]
    return "".join(part.text for part in message.content if isinstance(part, OutputText))
