"""POST /tokenize and /detokenize, in the formats of vLLM."""

from msgspec import Struct

from antiphon.core.dialects.chat_request import read_chat
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
from antiphon.service.tokens import Tokenization
from antiphon.transport.http.request import Request, decode_body, run_for_client
from antiphon.transport.http.route import Route


class TokensEndpoint(Struct, frozen=True):
    service: Tokenization
    limits: Limits

    def routes(self, model: str) -> list[Route]:
        """`model`: the model name in the examples."""
        return [
            Route(
                method="POST",
                path="/v1/tokenize",
                endpoint=self.tokenize,
                summary="Tokenize a text or a chat",
                description="With `messages`, and the other fields of a chat completion, it returns the tokens that "
                "the model would read.",
                takes=Tokenize,
                example={"model": model, "prompt": "Hello!"},
                gives=Tokenized,
                new_work=True,
            ),
            Route(
                method="POST",
                path="/v1/detokenize",
                endpoint=self.detokenize,
                summary="Convert tokens to text",
                takes=Detokenize,
                example={"model": model, "tokens": [1, 2, 3]},
                gives=Detokenized,
                new_work=True,
            ),
        ]

    async def tokenize(self, request: Request) -> None:
        body = await request.read_body(self.limits)
        parsed = await decode_body(body, decode_tokenize, self.limits)
        if parsed.chat is None:
            request.ignored = parsed.ignored
            tokenized = await run_for_client(request, self.service.tokenize(request.tenant, parsed.request))
        else:
            chat = await decode_body(parsed.chat, read_chat, self.limits)
            counted = await run_for_client(request, self.service.tokenize_chat(request.tenant, parsed.request, chat))
            request.ignored, tokenized = counted.ignored, counted.tokenized
        await request.reply(200, encode(tokenized))

    async def detokenize(self, request: Request) -> None:
        body = await request.read_body(self.limits)
        parsed, request.ignored = await decode_body(body, decode_detokenize, self.limits)
        text = await run_for_client(request, self.service.detokenize(request.tenant, parsed))
        await request.reply(200, encode(Detokenized(prompt=text)))
