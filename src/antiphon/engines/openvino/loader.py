"""Loads a model into OpenVINO's pipeline. Imports OpenVINO, which only the child process may.

A GGUF file is converted once: reading its tokenizer takes longer than compiling the model. The converted form is
written to a temporary folder, which is then renamed, so that several processes may convert the same file.
"""

import asyncio
import math
import tempfile
from pathlib import Path
from typing import Any

import openvino as ov
import openvino_genai as genai
from msgspec.json import Decoder
from openvino import opset13 as ops

from antiphon.engines.openvino.converted_models import mark_used, remove_unused, store_converted
from antiphon.engines.openvino.generation import BLOCK_TOKENS, CompletionBody, GenerationLoop, RunningCompletion
from antiphon.engines.openvino.launch import OpenVinoLaunch
from antiphon.engines.openvino.server import STREAM_HEADERS, RequestError, shorten_error
from antiphon.engines.openvino.token_text import TokenTable
from antiphon.http_server.http_exchange import HttpExchange

DEVICE = "CPU"
MODEL_FILE, TOKENIZER_FILE = "openvino_model.xml", "openvino_tokenizer.xml"


def load_model(launch: OpenVinoLaunch) -> "GeneratingModel":
    if not launch.converted:
        return GeneratingModel(launch, Path(launch.model), Path(launch.model))
    folder = Path(launch.converted)
    if (folder / TOKENIZER_FILE).exists():
        mark_used(folder)
        return GeneratingModel(launch, folder, folder)
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent.parent, prefix=".converting-") as temporary:
        link = Path(temporary) / "model" / "model.gguf"
        link.parent.mkdir()
        link.symlink_to(launch.model)  # the converted form is written beside the file
        model = GeneratingModel(launch, link, link, enable_save_ov_model=True)
        link.unlink()
        store_converted(link.parent, folder)
    remove_unused(folder.parents[2])
    return model


class GeneratingModel:
    """A model that generates, with its tokenizer and its loop."""

    def __init__(self, launch: OpenVinoLaunch, model: Path, tokenizer: Path, **properties: Any) -> None:
        self._tokenizer = genai.Tokenizer(tokenizer, **properties)
        cache_blocks = math.ceil(launch.cache_tokens / BLOCK_TOKENS)
        scheduler = _make_scheduler(launch, cache_blocks)
        if launch.draft_model:
            properties["draft_model"] = genai.draft_model(launch.draft_model, DEVICE)
        if launch.prompt_lookup:
            properties["prompt_lookup"] = True
        # With the default, 8 bits, an answer depends on how much of its prompt was cached: seeds would not repeat it.
        properties |= {"INFERENCE_NUM_THREADS": launch.threads, "KV_CACHE_PRECISION": "f16"}
        pipeline = genai.ContinuousBatchingPipeline(model, self._tokenizer, scheduler, DEVICE, **properties)
        self._loop = GenerationLoop(pipeline, _make_tensor, cache_blocks)
        self._table = TokenTable(
            self._tokenizer.get_vocab(),
            launch.vocabulary_size,
            launch.control_tokens,
            self.encode,
            lambda tokens: self._tokenizer.decode(list(tokens), skip_special_tokens=False),
        )
        self._checker = ConstraintChecker(self._tokenizer, launch.vocabulary_size)
        self._body = Decoder(CompletionBody)

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special).input_ids.data[0].tolist()
        return ids

    def detokenize(self, tokens: list[int]) -> str:
        decoder = self._table.make_decoder(tokens)
        return decoder.feed(tokens) + decoder.finish()

    async def run(self) -> None:
        await self._loop.run()

    async def answer(self, path: str, body: bytes, exchange: HttpExchange) -> Any:
        match path:
            case "/completion":
                return await self._complete(self._body.decode(body), exchange)
            case "/slots":
                return self._loop.list_slots()
        raise RequestError(f"there is no path {path}")

    async def _complete(self, body: CompletionBody, exchange: HttpExchange) -> None:
        config = genai.GenerationConfig(**body.config)
        config.stop_token_ids = body.end_tokens
        config.validate()
        if body.structured:
            config.structured_output_config = genai.StructuredOutputConfig(**body.structured)
            await self._checker.check(body.structured)
        completion = RunningCompletion(body, config, self._table, exchange.write)
        exchange.on_disconnect(lambda: self._loop.cancel(completion))
        await exchange.send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        exchange.write(b": accepted\n\n")  # the head is sent with the first bytes
        self._loop.submit(completion)
        await completion.ended.wait()
        exchange.on_disconnect(None)
        await exchange.send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


class ConstraintChecker:
    """Compiles constraints before they reach the pipeline, in which one that fails would end all generations.

    A pipeline with a model that computes nothing compiles them, in a thread: it releases the GIL. Compiled constraints
    are cached with the tokenizer, so the pipeline of the model finds them.
    """

    def __init__(self, tokenizer: Any, vocabulary_size: int) -> None:
        self._pipeline = _make_empty_pipeline(tokenizer, vocabulary_size)
        self._lock = asyncio.Lock()

    async def check(self, structured: dict[str, str]) -> None:
        kind = "schema" if "json_schema" in structured else "grammar"
        config = genai.GenerationConfig(max_new_tokens=1)
        config.structured_output_config = genai.StructuredOutputConfig(**structured)
        try:
            async with self._lock:
                await asyncio.to_thread(self._pipeline.generate, _make_tensor([0]), config)
        except RuntimeError as error:
            raise RequestError(f"{kind}: {shorten_error(error)}") from None


def _make_empty_pipeline(tokenizer: Any, vocabulary_size: int) -> Any:
    inputs = [
        ops.parameter(shape, kind, name=name)
        for name, shape, kind in (
            ("input_ids", [-1, -1], ov.Type.i64),
            ("attention_mask", [-1, -1], ov.Type.i64),
            ("beam_idx", [-1], ov.Type.i32),
        )
    ]
    for each in inputs:
        each.output(0).set_names({each.friendly_name})
    shape = ops.concat([ops.shape_of(inputs[0]), ops.constant([vocabulary_size], dtype=ov.Type.i64)], 0)
    logits = ops.broadcast(ops.constant([0.0], dtype=ov.Type.f32), shape)
    logits.output(0).set_names({"logits"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.xml"
        ov.save_model(ov.Model([logits], inputs, "empty"), path, compress_to_fp16=False)
        packed = path.with_suffix(".bin").read_bytes()
        weights = ov.Tensor(ov.Type.u8, ov.Shape([len(packed)]))
        weights.data[:] = list(packed)
        return genai.LLMPipeline(
            path.read_text(), weights, tokenizer, DEVICE, genai.GenerationConfig(), ATTENTION_BACKEND="SDPA"
        )


def _make_scheduler(launch: OpenVinoLaunch, cache_blocks: int) -> Any:
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = launch.batch
    scheduler.max_num_seqs = launch.slots
    scheduler.num_kv_blocks = cache_blocks
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    return scheduler


def _make_tensor(tokens: list[int]) -> Any:
    tensor = ov.Tensor(ov.Type.i64, ov.Shape([1, len(tokens)]))
    tensor.data[0] = tokens
    return tensor
