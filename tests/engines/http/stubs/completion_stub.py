"""Raw completions, tokenization and embeddings of the engine stub.

Raw completions come in three formats: OpenAI's `completions`, SGLang's `generate` and llama.cpp's `completion`.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from itertools import chain
from typing import Any

import msgspec

from antiphon.core.prompt import (
    ChatPrompt,
    Chunk,
    Constraint,
    GenerationRequest,
    Grammar,
    JsonObject,
    JsonSchema,
    Sampling,
    Segment,
    TextPrompt,
    TokenCounts,
    TokenPrompt,
)
from antiphon.engines.fake.engine import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import TEMPLATE
from antiphon.protocol.types.parts import Logprob
from antiphon.render.template.template import render_text
from tests.engines.http.stubs.dialects import Dialect
from tests.engines.unix_server import STREAM, json_response, sse_event
from tests.support.local_servers import Writer

Json = dict[str, Any]
encode = msgspec.json.encode
SAMPLING_NAMES = {
    "no_stop_trim": "include_stop_str_in_output", "repeat_penalty": "repetition_penalty", "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed", "n_probs": "logprobs",
    "top_logprobs_num": "logprobs", "return_prompt_token_ids": "return_token_ids",
}  # fmt: skip


class RawCompletionStub:
    """Backed by a fake engine at token level, which has token ids."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.engine = FakeEngine(FakeSettings(level="tokens"))
        self._chat_engine = FakeEngine()
        self.bodies: list[Json] = []
        self.template = TEMPLATE
        # additional texts that are one token each; the fake engine does not receive them
        self.extra_tokens: dict[str, int] = {}
        self.cumulative = not dialect.asides.get("/server_info", {}).get("incremental_streaming_output", False)
        tokens = dialect.tokenizing
        self.paths = {dialect.raw.path, tokens, tokens.replace("tokenize", "detokenize"), dialect.embedding} - {""}
        if dialect.raw.shape == "completion":
            self.paths.add("/apply-template")

    async def respond(self, path: str, body: Json, writer: Writer) -> None:
        if not body.keys() - {"model"}:
            writer.write(
                error_response("`prompt`, `input` or whatever is missing.")
                if path != "/tokenize"
                else json_response(b"{}")
            )
        elif "-1" in (body.get("sampling_params", {}).get("logit_bias") or {}):
            writer.write(error_response("logit_bias must has keys in [0, 1999999], got -1."))
        elif path == "/apply-template":
            writer.write(json_response(encode({"prompt": "".join([segment.text for segment in self._render(body)])})))
        elif "detokenize" in path:
            await self._detokenize(body, writer)
        elif path == self._dialect.tokenizing and not self._dialect.sees and "image_url" in str(body):
            writer.write(error_response("m is not a multimodal model"))
        elif path == self._dialect.tokenizing:
            tokens = await self._tokenize(body)
            # A chat has fewer tokens if the stub answers chats: its chat engine has longer tokens.
            count = await self._chat_engine.count_tokens("m", parse_prompt(body)) if "messages" in body else len(tokens)
            writer.write(json_response(encode({"count": count, "max_model_len": 32768, "tokens": tokens})))
        elif path == self._dialect.embedding:
            await self._embed(body, writer)
        else:
            await self._complete(body, writer)

    async def _detokenize(self, body: Json, writer: Writer) -> None:
        text = await self.engine.detokenize("m", body["tokens"])
        writer.write(
            json_response(encode({{"vllm": "prompt", "sglang": "text"}.get(self._dialect.name, "content"): text}))
        )

    async def _tokenize(self, body: Json) -> Sequence[int]:
        if "messages" in body:
            return await self._encode_segments(self._render(body))
        text = next(body[name] for name in ("prompt", "content", "text") if name in body)
        return await self._encode_segments((Segment(text, control=body.get("parse_special", True)),))

    async def _encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        ids: list[int] = []
        for segment in segments:
            for piece in re.split(f"({'|'.join(self.extra_tokens) or '(?!)'})", segment.text):
                if piece in self.extra_tokens:
                    ids.append(self.extra_tokens[piece])
                elif piece:
                    ids += await self.engine.tokenize("m", TextPrompt((Segment(piece, segment.control),)))
        return ids

    def _render(self, body: Json) -> tuple[Segment, ...]:
        return render_text(self.template, parse_prompt(body), datetime(2026, 1, 1)).segments

    async def _embed(self, body: Json, writer: Writer) -> None:
        inputs = [body["input"]] if isinstance(body["input"], str) else body["input"]
        result = await self.engine.embed("m", inputs, body.get("dimensions"))
        data = [{"object": "embedding", "index": at, "embedding": one} for at, one in enumerate(result.vectors)]
        usage = {"prompt_tokens": result.tokens, "total_tokens": result.tokens}
        writer.write(json_response(encode({"object": "list", "data": list(reversed(data)), "usage": usage})))

    async def _complete(self, body: Json, writer: Writer) -> None:
        self.bodies.append(body)
        raw = self._dialect.raw
        if unknown := (body.keys() - raw.accepted_fields) | (
            body.get("sampling_params", {}).keys() - raw.sampling_params
        ):
            writer.write(error_response(f"unknown fields: {sorted(unknown)}"))
            return
        request = _to_generation_request(body, self._dialect, set(self.extra_tokens.values()))
        if not body["stream"]:
            chunks = [chunk async for chunks in self.engine.generate(request) for chunk in chunks]
            writer.write(json_response(encode(_to_completion(chunks, self._dialect))))
            return
        writer.write(STREAM)
        async for data in self._stream_events(request):
            writer.write(sse_event(encode(data)))
            await writer.drain()
            if writer.is_closing():
                raise ConnectionResetError
        if raw.shape != "completion":
            writer.write(sse_event(b"[DONE]"))
        await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def _stream_events(self, request: GenerationRequest) -> AsyncIterator[Json]:
        renderers: dict[str, Callable[[Chunk, Dialect], list[Json]]] = {
            "completions": _completion_events,
            "generate": _SglangEvents(self.cumulative),
            "completion": _llamacpp_events,
        }
        async with aclosing(self.engine.generate(request)) as lists:
            async for chunks in lists:
                for data in chain.from_iterable(
                    [renderers[self._dialect.raw.shape](chunk, self._dialect) for chunk in chunks]
                ):
                    yield data


def _completion_events(chunk: Chunk, dialect: Dialect) -> list[Json]:
    choice: Json = {"index": 0, "text": chunk.text, "logprobs": None, "finish_reason": None}
    if dialect.name == "vllm":
        prompt = None if chunk.extras is None else chunk.extras.prompt_token_ids
        choice |= {"stop_reason": None, "prompt_token_ids": prompt, "token_ids": list(chunk.tokens)}
    if chunk.logprobs:
        choice["logprobs"] = _logprob_columns(chunk.logprobs)
    events: list[Json] = [{"object": "text_completion", "choices": [choice]}] if chunk.text or chunk.tokens else []
    if chunk.finish is not None:
        final = {"index": 0, "text": "", "logprobs": None, "finish_reason": chunk.finish}
        events.append({"object": "text_completion", "choices": [final]})
        events.append(
            {"choices": [], "usage": to_usage(chunk.counts or TokenCounts(), dialect), "system_fingerprint": "fp"}
        )
    return events


class _SglangEvents:
    """Events of SGLang's `/generate`. If `cumulative`, every event repeats the output so far."""

    def __init__(self, cumulative: bool) -> None:
        self._cumulative = cumulative
        self._text = ""
        self._ids: list[int] = []
        self._logprobs: list[Logprob] = []

    def __call__(self, chunk: Chunk, dialect: Dialect) -> list[Json]:
        if not self._cumulative:
            self.__init__(False)  # type: ignore[misc]  # incremental events repeat nothing
        self._text += chunk.text
        self._ids += chunk.tokens
        self._logprobs += chunk.logprobs
        counts = chunk.counts or TokenCounts()
        meta: Json = {
            "id": "x",
            "finish_reason": chunk.finish and {"type": chunk.finish, "length": 1},
            "prompt_tokens": counts.input_tokens,
            "completion_tokens": counts.output_tokens,
            "cached_tokens": counts.cached_tokens,
            "output_token_logprobs": [(one.logprob, 7, one.token) for one in self._logprobs],
            "output_top_logprobs": [
                [(top.logprob, 7, top.token) for top in one.top_logprobs] for one in self._logprobs
            ],
        }
        return [{"text": self._text, "output_ids": self._ids, "meta_info": meta}]


def _llamacpp_events(chunk: Chunk, dialect: Dialect) -> list[Json]:
    """Return events of llama.cpp's `/completion`."""
    probabilities = [
        {"id": 7, **msgspec.to_builtins(one), "top_logprobs": [{"id": 7, **msgspec.to_builtins(top)} for top in tops]}
        for one, tops in ((one, one.top_logprobs) for one in chunk.logprobs)
    ]
    output: Json = {"index": 0, "content": chunk.text, "tokens": list(chunk.tokens), "stop": False}
    if probabilities:
        output["completion_probabilities"] = probabilities
    if chunk.finish is None:
        return [output]
    counts, stop_string = chunk.counts or TokenCounts(), chunk.extras.stop_reason if chunk.extras else None
    final = {
        "content": "",
        "tokens": [],
        "stop": True,
        "stop_type": "limit" if chunk.finish == "length" else "eos" if stop_string is None else "word",
        "stopping_word": stop_string or "",
        "tokens_predicted": counts.output_tokens,
        "tokens_evaluated": counts.input_tokens,
        "timings/cache_n": counts.cached_tokens,
    }
    return [output, final] if chunk.text else [final]


def _to_completion(chunks: list[Chunk], dialect: Dialect) -> Json:
    text, last = "".join(chunk.text for chunk in chunks), chunks[-1]
    choice: Json = {"index": 0, "text": text, "finish_reason": last.finish, "prompt_logprobs": [None]}
    if dialect.name == "vllm":
        choice["token_ids"] = [token for chunk in chunks for token in chunk.tokens]
    return {
        "choices": [choice],
        "usage": to_usage(last.counts or TokenCounts(), dialect),
        "kv_transfer_params": {"at": 1},
    }


def _logprob_columns(logprobs: Sequence[Logprob]) -> Json:
    return {
        "text_offset": [0] * len(logprobs),
        "tokens": [one.token for one in logprobs],
        "token_logprobs": [one.logprob for one in logprobs],
        "top_logprobs": [{top.token: top.logprob for top in one.top_logprobs} for one in logprobs],
    }


def _to_generation_request(body: Json, dialect: Dialect, excluded: set[int]) -> GenerationRequest:
    fields = {
        SAMPLING_NAMES.get(name, name): value for name, value in {**body, **body.get("sampling_params", {})}.items()
    }
    names = Sampling.__struct_fields__
    sampling = {
        name: fields[name] for name in names if name in fields and name not in ("logit_bias", "prompt_logprobs")
    }
    for name in ("stop", "stop_token_ids"):
        sampling[name] = tuple(fields.get(name, ()))
    if dialect.includes_stop and body["stream"]:
        sampling["include_stop_str_in_output"] = True
    prompt = next(fields[name] for name in ("input_ids", "text", "prompt") if name in fields)
    return GenerationRequest(
        model="m",
        prompt=TextPrompt((Segment(prompt, True),))
        if isinstance(prompt, str)
        else TokenPrompt(tuple([token for token in prompt if token not in excluded])),
        sampling=Sampling(**sampling),
        constraint=parse_constraint({**body, **body.get("sampling_params", {})}),
    )


def parse_constraint(body: Json) -> Constraint | None:
    response_format = body.get("response_format", {})
    if (regex := body.get("regex") or body.get("structured_outputs", {}).get("regex")) is not None:
        return Grammar("regex", regex)
    if (schema := body.get("json_schema") or response_format.get("json_schema", {}).get("schema")) is not None:
        return JsonSchema(msgspec.json.decode(schema) if isinstance(schema, str) else schema)
    return JsonObject() if response_format.get("type") == "json_object" else None


def parse_prompt(body: Json) -> ChatPrompt:
    return ChatPrompt(
        messages=tuple(body["messages"]),
        tools=tuple(body.get("tools", ())),
        tool_choice=body.get("tool_choice", "auto"),
        template_kwargs=body.get("chat_template_kwargs", {}),
    )


def to_usage(counts: TokenCounts, dialect: Dialect) -> Json:
    usage: Json = {
        "prompt_tokens": counts.input_tokens,
        "completion_tokens": counts.output_tokens,
        "total_tokens": counts.input_tokens + counts.output_tokens,
    }
    if dialect.reports_cached:
        usage["prompt_tokens_details"] = {"cached_tokens": counts.cached_tokens}
    return usage


def error_response(message: str) -> bytes:
    return json_response(encode({"error": {"message": message, "code": 400}}), "400 Bad Request")
