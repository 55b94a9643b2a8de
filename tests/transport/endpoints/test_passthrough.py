"""Tests endpoints that pass requests through to engines: ranking, scoring, transcription and pooling.

The fake engine supports the first three; a task that no engine supports yields 404.
"""

import json

import pytest
from msgspec.structs import replace

from antiphon.engines.base import JSON_MEDIA_TYPE, Capabilities, PassthroughReply, Task
from antiphon.engines.fake import FakeEngine
from antiphon.limits import Limits
from drills.bombs.forms import BOUNDARY, form
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import AsgiResponse, call

pytestmark = pytest.mark.anyio

CATS = {"query": "where is the cat", "documents": ["a bill was passed", "the cat is on the mat", "dogs bark"]}
FORM = (b"content-type", f"multipart/form-data; boundary={BOUNDARY}".encode())


class RecordingEngine(FakeEngine):
    """An engine that records the requests passed to it and may return a fixed reply."""

    def __init__(self, answer: PassthroughReply | None = None) -> None:
        super().__init__()
        self.calls: list[tuple[str, Task, bytes, str]] = []
        self._answer = answer

    async def pass_through(
        self, model: str, task: Task, body: bytes, media_type: str = JSON_MEDIA_TYPE
    ) -> PassthroughReply:
        self.calls.append((model, task, body, media_type))
        return self._answer or await super().pass_through(model, task, body, media_type)


async def transcribe(fake: ApiServer, body: bytes, path: str = "/v1/audio/transcriptions") -> AsgiResponse:
    return await call(fake.app, "POST", path, FORM, body=[body])


@pytest.mark.shows("G.8")
@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank", "/v3/rerank"])
async def test_documents_are_ranked_on_every_path(path: str) -> None:
    async with run_api() as fake:
        body = json.dumps({"model": "fake", **CATS, "top_n": 2}).encode()
        answer = await call(fake.app, "POST", path, (b"content-type", b"application/json"), body=[body])
    results = answer.json()["results"]
    assert (results[0]["index"], len(results)) == (1, 2)
    assert results[0]["relevance_score"] > results[1]["relevance_score"]


@pytest.mark.shows("G.8")
async def test_pairs_are_scored() -> None:
    async with run_api() as fake:
        scored = await fake.post_ok("score", {"model": "fake", "text_1": "the cat", "text_2": ["the cat", "a bill"]})
    assert scored["data"][0]["score"] == pytest.approx(1)
    assert scored["data"][1]["score"] < 0.5


@pytest.mark.shows("G2.1")
@pytest.mark.parametrize("path", ["classify", "pooling"])
async def test_a_task_that_no_engine_supports_yields_404(path: str) -> None:
    async with run_api() as fake:
        for body in ({"model": "fake", "input": "a"}, {"input": "a"}):
            answer = await fake.post(path, body)
            assert (answer.status, answer.error["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(
    ("body", "param"),
    [(b'{"model": 1}', "model"), (b'{"model": ""}', "model"), (b"[]", None), (b"{", None), (b'{"a": NaN}', "a")],
)
async def test_only_valid_json_is_passed_through(body: bytes, param: str | None) -> None:
    engine = RecordingEngine()
    async with run_api(engine=engine) as fake:
        answer = await fake.post("rerank", body)
    assert (answer.status, answer.error["param"], engine.calls) == (400, param, [])


async def test_the_number_of_ranked_documents_is_limited() -> None:
    async with run_api(engine=(engine := RecordingEngine()), limits=Limits(embedding_inputs=3)) as fake:
        answer = await fake.post("rerank", {"model": "fake", "query": "x", "documents": ["x"] * 4})
        assert (answer.status, answer.error["param"], engine.calls) == (400, "documents", [])
        await fake.post_ok("rerank", {"model": "fake", "query": "x", "documents": ["x"] * 3})
        assert (
            await fake.post("pooling", {"model": "fake", "input": [1, 2, 3, 4]})
        ).status == 404  # token ids of one text, not four inputs


async def test_an_alias_is_mapped_in_the_request_and_back_in_the_reply() -> None:
    engine = RecordingEngine()
    async with run_api(engine=engine, served_model_name=("mine",)) as fake:
        ranked = await fake.post_ok("rerank", {"model": "mine", **CATS})
    [(model, task, body, _)] = engine.calls
    assert (model, task, json.loads(body)) == ("fake", "rerank", {"model": "fake", **CATS})
    assert ranked["model"] == "mine"


async def test_a_reply_that_is_not_json_is_an_engine_error() -> None:
    async with run_api(engine=RecordingEngine(PassthroughReply(b"<html>"))) as fake:
        answer = await fake.post("rerank", {"model": "fake", **CATS})
    assert (answer.status, answer.error["code"]) == (500, "server_error")


async def test_an_engine_rejection_is_returned() -> None:
    async with run_api() as fake:
        answer = await fake.post("rerank", {"model": "fake", "query": "x", "documents": ["a", 1]})
    assert (answer.status, answer.error["param"]) == (400, "documents[1]")


@pytest.mark.shows("G2.1")
async def test_an_audio_form_is_passed_through_unchanged_except_for_the_model_name() -> None:
    engine = RecordingEngine()
    async with run_api(engine=engine, served_model_name=("mine",)) as fake:
        sent = form(("model", "mine"), ("language", "de"))
        answer = await transcribe(fake, sent)
    [(model, task, body, media_type)] = engine.calls
    assert (model, task) == ("fake", "transcribe")
    assert body == form(("model", "fake"), ("language", "de"))
    assert media_type == FORM[1].decode()
    assert answer.json() == {"text": f"You sent {len(body)} bytes of multipart/form-data."}


@pytest.mark.shows("G2.1")
async def test_unsupported_translations_yield_404() -> None:
    async with run_api() as fake:
        answer = await transcribe(fake, form(("model", "fake")), "/v1/audio/translations")
    assert (answer.status, answer.error["param"]) == (404, "model")


@pytest.mark.parametrize(
    ("media_type", "expected"),
    [
        ("text/vtt; charset=utf-8", b"text/vtt"),
        ("text/plain", b"text/plain"),
        ("text/html", b"application/octet-stream"),
    ],
)
async def test_only_harmless_media_types_of_replies_are_passed_through(media_type: str, expected: bytes) -> None:
    async with run_api(engine=RecordingEngine(PassthroughReply(b"WEBVTT", media_type))) as fake:
        answer = await transcribe(fake, form(("model", "fake")))
    assert (answer.header(b"content-type"), answer.body) == (expected, b"WEBVTT")


async def test_plain_text_is_extracted_from_a_json_transcription() -> None:
    async with run_api(engine=RecordingEngine(PassthroughReply('{"text": "Größe"}'.encode()))) as fake:
        plain = await transcribe(fake, form(("model", "fake"), ("response_format", "text")))
        other = await transcribe(fake, form(("model", "fake"), ("response_format", "json")))
    assert (plain.header(b"content-type"), plain.body.decode()) == (b"text/plain", "Größe")
    assert other.json() == {"text": "Größe"}


async def test_a_json_transcription_without_text_is_an_engine_error() -> None:
    async with run_api(engine=RecordingEngine(PassthroughReply(b"[]"))) as fake:
        answer = await transcribe(fake, form(("model", "fake"), ("response_format", "text")))
    assert (answer.status, answer.error["type"]) == (500, "server_error")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(), "model"),
        (form(("model", "a"), ("model", "b")), "model"),
        (form(("model", "fake"), end=""), None),
        (form(*[(f"f{number}", "") for number in range(80)]), None),
        (b"", None),
        (b"nothing", None),
    ],
)
async def test_an_invalid_or_incomplete_form_is_rejected(body: bytes, param: str | None) -> None:
    async with run_api(engine=(engine := RecordingEngine())) as fake:
        answer = await transcribe(fake, body)
    assert (answer.status, answer.error["param"], engine.calls) == (400, param, [])


@pytest.mark.parametrize(
    "kind", [b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=" + b"x" * 71]
)
async def test_a_form_without_a_valid_boundary_is_rejected(kind: bytes) -> None:
    async with run_api() as fake:
        answer = await call(fake.app, "POST", "/v1/audio/transcriptions", (b"content-type", kind), body=[b"--x--"])
    assert answer.status in (400, 415)


async def test_the_size_of_an_audio_file_is_limited() -> None:
    async with run_api(limits=Limits(audio_bytes=300)) as fake:
        assert (await transcribe(fake, form(("model", "fake")))).status == 200
        assert (await transcribe(fake, form(("model", "fake"), file=bytes(300)))).status == 413


class SingleModelEngine(FakeEngine):
    def serves(self, model: str) -> bool:
        return model == "fake"


async def test_an_unknown_model_yields_404() -> None:
    async with run_api(engine=SingleModelEngine()) as fake:
        assert (await fake.post("rerank", {"model": "other", **CATS})).error["code"] == "model_not_found"
        assert (await fake.post("embeddings", {"model": "other", "input": "a"})).error["code"] == "model_not_found"


class PoolingEngine(RecordingEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), tasks=frozenset({"classify", "pooling"}))


@pytest.mark.shows("G2.1")
@pytest.mark.parametrize("task", ["classify", "pooling"])
async def test_a_request_for_a_supported_task_is_passed_through(task: str) -> None:
    engine = PoolingEngine(PassthroughReply(b'{"data": [0.5]}'))
    body = {"model": "fake", "input": "a", "some_field": 1}
    async with run_api(engine=engine) as fake:
        answer = await fake.post(task, body)
    [(model, called, sent, _)] = engine.calls
    assert (model, called, json.loads(sent)) == ("fake", task, body)
    assert (answer.status, answer.json()) == (200, {"data": [0.5]})


@pytest.mark.shows("G2.1")
async def test_raw_vectors_are_passed_through_with_their_metadata() -> None:
    valid_metadata = b'{"model": "fake", "data": [{"index": 0, "start": 0, "end": 4}]}'
    for metadata in (valid_metadata, b""):
        engine = PoolingEngine(PassthroughReply(b"\x00\x00\x80\x3f", "application/octet-stream", metadata))
        async with run_api(engine=engine, served_model_name=("größer",)) as fake:
            answer = await fake.post("pooling", {"model": "größer", "input": "a", "encoding_format": "bytes"})
        assert (answer.status, answer.body) == (200, b"\x00\x00\x80\x3f")
        assert answer.header(b"content-type") == b"application/octet-stream"
        if metadata:
            assert json.loads(answer.header(b"metadata") or b"") == {**json.loads(valid_metadata), "model": "größer"}
        else:
            assert answer.header(b"metadata") is None


async def test_raw_vectors_with_invalid_metadata_are_an_engine_error() -> None:
    for metadata in (b"[]", b"no json"):
        async with run_api(engine=PoolingEngine(PassthroughReply(b"", "application/octet-stream", metadata))) as fake:
            assert (await fake.post("pooling", {"model": "fake", "input": "a"})).status == 500
