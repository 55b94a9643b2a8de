"""POST /tokenize and /detokenize, in the shapes of vLLM."""

from antiphon.core.dialects.chat.request import read_chat
from antiphon.limits import Limits
from antiphon.protocol.bodies.tokens import (
    Detokenize,
    Detokenized,
    Tokenize,
    Tokenized,
    decode_detokenize,
    decode_tokenize,
)
from antiphon.protocol.decoding.codec import encode
from antiphon.service.tokens import Tokens
from antiphon.transport.http.request import Request, Route, decoded
from antiphon.transport.server.client_task import attended

_ERRORS = (400, 404, 413, 415, 429, 500, 503)


class TokensEndpoint:
    def __init__(self, service: Tokens, limits: Limits) -> None:
        self._service = service
        self._limits = limits

    def routes(self, model: str) -> list[Route]:
        """`model`: a name for the examples."""
        return [
            Route(
                method="POST",
                path="/v1/tokenize",
                endpoint=self.tokenize,
                summary="Make tokens of a text or a chat",
                description="With `messages`, and whatever else a chat completion may have, it gives the tokens that "
                "the model would read.",
                takes=Tokenize,
                example={"model": model, "prompt": "Hello!"},
                gives=Tokenized,
                new_work=True,
                errors=_ERRORS,
            ),
            Route(
                method="POST",
                path="/v1/detokenize",
                endpoint=self.detokenize,
                summary="Make a text of tokens",
                takes=Detokenize,
                example={"model": model, "tokens": [1, 2, 3]},
                gives=Detokenized,
                new_work=True,
                errors=_ERRORS,
            ),
        ]

    async def tokenize(self, request: Request) -> None:
        body = await request.read_body(self._limits)
        asked = await decoded(body, decode_tokenize, self._limits)
        if asked.chat is None:
            request.ignored = asked.ignored
            tokenized = await attended(request, self._service.tokenize(request.tenant, asked.request))
        else:
            chat = await decoded(asked.chat, read_chat, self._limits)
            counted = await attended(request, self._service.tokenize_chat(request.tenant, asked.request, chat))
            request.ignored, tokenized = counted.ignored, counted.tokenized
        await request.reply(200, encode(tokenized))

    async def detokenize(self, request: Request) -> None:
        body = await request.read_body(self._limits)
        asked, request.ignored = await decoded(body, decode_detokenize, self._limits)
        text = await attended(request, self._service.detokenize(request.tenant, asked))
        await request.reply(200, encode(Detokenized(prompt=text)))
