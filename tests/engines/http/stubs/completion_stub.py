"""The part of a stand-in that completes raw prompts and makes tokens, in the three shapes that there are."""

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
    Counts,
    Grammar,
    JsonObject,
    JsonSchema,
    Sampling,
    Segment,
    TextPrompt,
    TokenPrompt,
    Work,
)
from antiphon.engines.fake.engine import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import TEMPLATE
from antiphon.protocol.types.response import Logprob
from antiphon.render.template.template import render_text
from tests.engines.http.stubs.dialects import Dialect
from tests.engines.unix_server import STREAM, Writer, answer, event

Json = dict[str, Any]
encode = msgspec.json.encode
OURS = {
    "no_stop_trim": "include_stop_str_in_output", "repeat_penalty": "repetition_penalty", "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed", "n_probs": "logprobs",
    "top_logprobs_num": "logprobs", "return_prompt_token_ids": "return_token_ids",
}  # fmt: skip


class RawStub:
    """Over a fake engine at token level, so that there are ids to tell."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.engine = FakeEngine(FakeSettings(level="tokens"))
        self._chats = FakeEngine()
        self.seen: list[Json] = []
        self.template = TEMPLATE
        self.marks: dict[str, int] = {}  # further texts that are one token each; the fake engine does not get them
        self.whole = not dialect.asides.get("/server_info", {}).get("incremental_streaming_output", False)
        tokens = dialect.tokenizing
        self.paths = {dialect.raw.path, tokens, tokens.replace("tokenize", "detokenize"), dialect.embedding} - {""}
        if dialect.raw.shape == "completion":
            self.paths.add("/apply-template")

    async def answer(self, path: str, body: Json, writer: Writer) -> None:
        if not body.keys() - {"model"}:
            writer.write(refused("`prompt`, `input` or whatever is missing.") if path != "/tokenize" else answer(b"{}"))
        elif "-1" in (body.get("sampling_params", {}).get("logit_bias") or {}):
            writer.write(refused("logit_bias must has keys in [0, 1999999], got -1."))
        elif path == "/apply-template":
            writer.write(answer(encode({"prompt": "".join([segment.text for segment in self._rendered(body)])})))
        elif "detokenize" in path:
            await self._detokenize(body, writer)
        elif path == self._dialect.tokenizing and not self._dialect.sees and "image_url" in str(body):
            writer.write(refused("m is not a multimodal model"))
        elif path == self._dialect.tokenizing:
            tokens = await self._tokens(body)
            # A chat has fewer where the stand-in answers chats: its engine for these has wider tokens.
            count = await self._chats.count("m", prompt_of(body)) if "messages" in body else len(tokens)
            writer.write(answer(encode({"count": count, "max_model_len": 32768, "tokens": tokens})))
        elif path == self._dialect.embedding:
            await self._embed(body, writer)
        else:
            await self._complete(body, writer)

    async def _detokenize(self, body: Json, writer: Writer) -> None:
        text = await self.engine.detokenize("m", body["tokens"])
        writer.write(answer(encode({{"vllm": "prompt", "sglang": "text"}.get(self._dialect.name, "content"): text})))

    async def _tokens(self, body: Json) -> Sequence[int]:
        if "messages" in body:
            return await self._ids(self._rendered(body))
        text = next(body[name] for name in ("prompt", "content", "text") if name in body)
        return await self._ids((Segment(text, control=body.get("parse_special", True)),))

    async def _ids(self, segments: Sequence[Segment]) -> list[int]:
        ids: list[int] = []
        for segment in segments:
            for piece in re.split(f"({'|'.join(self.marks) or '(?!)'})", segment.text):
                if piece in self.marks:
                    ids.append(self.marks[piece])
                elif piece:
                    ids += await self.engine.tokenize("m", TextPrompt((Segment(piece, segment.control),)))
        return ids

    def _rendered(self, body: Json) -> tuple[Segment, ...]:
        return render_text(self.template, prompt_of(body), datetime(2026, 1, 1)).segments

    async def _embed(self, body: Json, writer: Writer) -> None:
        inputs = [body["input"]] if isinstance(body["input"], str) else body["input"]
        made = await self.engine.embed("m", inputs, body.get("dimensions"))
        data = [{"object": "embedding", "index": at, "embedding": one} for at, one in enumerate(made.vectors)]
        usage = {"prompt_tokens": made.tokens, "total_tokens": made.tokens}
        writer.write(answer(encode({"object": "list", "data": list(reversed(data)), "usage": usage})))

    async def _complete(self, body: Json, writer: Writer) -> None:
        self.seen.append(body)
        raw = self._dialect.raw
        if unknown := (body.keys() - raw.takes) | (body.get("sampling_params", {}).keys() - raw.within):
            writer.write(refused(f"unknown fields: {sorted(unknown)}"))
            return
        work = _work(body, self._dialect, set(self.marks.values()))
        if not body["stream"]:
            chunks = [chunk async for chunks in self.engine.generate(work) for chunk in chunks]
            writer.write(answer(encode(_whole(chunks, self._dialect))))
            return
        writer.write(STREAM)
        async for data in self._told(work):
            writer.write(event(encode(data)))
            await writer.drain()
            if writer.is_closing():
                raise ConnectionResetError
        if raw.shape != "completion":
            writer.write(event(b"[DONE]"))
        await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def _told(self, work: Work) -> AsyncIterator[Json]:
        tell: dict[str, Callable[[Chunk, Dialect], list[Json]]] = {
            "completions": _texts,
            "generate": _Generated(self.whole),
            "completion": _events,
        }
        async with aclosing(self.engine.generate(work)) as lists:
            async for chunks in lists:
                for data in chain.from_iterable(
                    [tell[self._dialect.raw.shape](chunk, self._dialect) for chunk in chunks]
                ):
                    yield data


def _texts(chunk: Chunk, dialect: Dialect) -> list[Json]:
    choice: Json = {"index": 0, "text": chunk.text, "logprobs": None, "finish_reason": None}
    if dialect.name == "vllm":
        prompt = None if chunk.extras is None else chunk.extras.prompt_token_ids
        choice |= {"stop_reason": None, "prompt_token_ids": prompt, "token_ids": list(chunk.tokens)}
    if chunk.logprobs:
        choice["logprobs"] = _columns(chunk.logprobs)
    said: list[Json] = [{"object": "text_completion", "choices": [choice]}] if chunk.text or chunk.tokens else []
    if chunk.finish is not None:
        over = {"index": 0, "text": "", "logprobs": None, "finish_reason": chunk.finish}
        said.append({"object": "text_completion", "choices": [over]})
        said.append({"choices": [], "usage": usage_of(chunk.counts or Counts(), dialect), "system_fingerprint": "fp"})
    return said


class _Generated:
    """SGLang's; `whole`: every event repeats all that was said."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._text = ""
        self._ids: list[int] = []
        self._logprobs: list[Logprob] = []

    def __call__(self, chunk: Chunk, dialect: Dialect) -> list[Json]:
        if not self._whole:
            self.__init__(False)  # type: ignore[misc]  # nothing is kept
        self._text += chunk.text
        self._ids += chunk.tokens
        self._logprobs += chunk.logprobs
        counts = chunk.counts or Counts()
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


def _events(chunk: Chunk, dialect: Dialect) -> list[Json]:
    """llama.cpp's."""
    probabilities = [
        {"id": 7, **msgspec.to_builtins(one), "top_logprobs": [{"id": 7, **msgspec.to_builtins(top)} for top in tops]}
        for one, tops in ((one, one.top_logprobs) for one in chunk.logprobs)
    ]
    said: Json = {"index": 0, "content": chunk.text, "tokens": list(chunk.tokens), "stop": False}
    if probabilities:
        said["completion_probabilities"] = probabilities
    if chunk.finish is None:
        return [said]
    counts, word = chunk.counts or Counts(), chunk.extras.stop_reason if chunk.extras else None
    over = {
        "content": "", "tokens": [], "stop": True,
        "stop_type": "limit" if chunk.finish == "length" else "eos" if word is None else "word",
        "stopping_word": word or "", "tokens_predicted": counts.output_tokens, "tokens_evaluated": counts.input_tokens,
        "timings/cache_n": counts.cached_tokens,
    }  # fmt: skip
    return [said, over] if chunk.text else [over]


def _whole(chunks: list[Chunk], dialect: Dialect) -> Json:
    text, last = "".join(chunk.text for chunk in chunks), chunks[-1]
    choice: Json = {"index": 0, "text": text, "finish_reason": last.finish, "prompt_logprobs": [None]}
    if dialect.name == "vllm":
        choice["token_ids"] = [token for chunk in chunks for token in chunk.tokens]
    return {"choices": [choice], "usage": usage_of(last.counts or Counts(), dialect), "kv_transfer_params": {"at": 1}}


def _columns(logprobs: Sequence[Logprob]) -> Json:
    return {
        "text_offset": [0] * len(logprobs),
        "tokens": [one.token for one in logprobs],
        "token_logprobs": [one.logprob for one in logprobs],
        "top_logprobs": [{top.token: top.logprob for top in one.top_logprobs} for one in logprobs],
    }


def _work(body: Json, dialect: Dialect, without: set[int]) -> Work:
    given = {OURS.get(name, name): value for name, value in {**body, **body.get("sampling_params", {})}.items()}
    wanted = Sampling.__struct_fields__
    plain = {name: given[name] for name in wanted if name in given and name not in ("logit_bias", "prompt_logprobs")}
    for name in ("stop", "stop_token_ids"):
        plain[name] = tuple(given.get(name, ()))
    if dialect.keeps_stop and body["stream"]:
        plain["include_stop_str_in_output"] = True
    prompt = next(given[name] for name in ("input_ids", "text", "prompt") if name in given)
    return Work(
        model="m",
        prompt=TextPrompt((Segment(prompt, True),))
        if isinstance(prompt, str)
        else TokenPrompt(tuple([token for token in prompt if token not in without])),
        sampling=Sampling(**plain),
        constraint=constraint_of({**body, **body.get("sampling_params", {})}),
    )


def constraint_of(body: Json) -> Constraint | None:
    form = body.get("response_format", {})
    if (regex := body.get("regex") or body.get("structured_outputs", {}).get("regex")) is not None:
        return Grammar("regex", regex)
    if (schema := body.get("json_schema") or form.get("json_schema", {}).get("schema")) is not None:
        return JsonSchema(msgspec.json.decode(schema) if isinstance(schema, str) else schema)
    return JsonObject() if form.get("type") == "json_object" else None


def prompt_of(body: Json) -> ChatPrompt:
    return ChatPrompt(
        messages=tuple(body["messages"]),
        tools=tuple(body.get("tools", ())),
        tool_choice=body.get("tool_choice", "auto"),
        template_kwargs=body.get("chat_template_kwargs", {}),
    )


def usage_of(counts: Counts, dialect: Dialect) -> Json:
    usage: Json = {
        "prompt_tokens": counts.input_tokens,
        "completion_tokens": counts.output_tokens,
        "total_tokens": counts.input_tokens + counts.output_tokens,
    }
    if dialect.tells_cached:
        usage["prompt_tokens_details"] = {"cached_tokens": counts.cached_tokens}
    return usage


def refused(words: str) -> bytes:
    return answer(encode({"error": {"message": words, "code": 400}}), "400 Bad Request")
