"""What is passed to engines: scores and rankings of the fake engine, its ears, and 404 for what it does not do."""

import json

import pytest
from msgspec.structs import replace

from antiphon.engines.base import JSON, Capabilities, Deed, Relayed
from antiphon.engines.fake import FakeEngine
from antiphon.limits import Limits
from drills.bombs.forms import BOUNDARY, form
from tests.api.app import Api, api
from tests.support.asgi_client import Answer, call

pytestmark = pytest.mark.anyio

CATS = {"query": "where is the cat", "documents": ["a bill was passed", "the cat is on the mat", "dogs bark"]}
FORM = (b"content-type", f"multipart/form-data; boundary={BOUNDARY}".encode())


class Spy(FakeEngine):
    """Says what it was given, and answers what it is told to."""

    def __init__(self, answer: Relayed | None = None) -> None:
        super().__init__()
        self.heard: list[tuple[str, Deed, bytes, str]] = []
        self._answer = answer

    async def relay(self, model: str, deed: Deed, body: bytes, media_type: str = JSON) -> Relayed:
        self.heard.append((model, deed, body, media_type))
        return self._answer or await super().relay(model, deed, body, media_type)


async def heard(fake: Api, body: bytes, path: str = "/v1/audio/transcriptions") -> Answer:
    return await call(fake.app, "POST", path, FORM, body=[body])


@pytest.mark.shows("G.8")
@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank", "/v3/rerank"])
async def test_documents_are_ranked_at_every_path(path: str) -> None:
    async with api() as fake:
        body = json.dumps({"model": "fake", **CATS, "top_n": 2}).encode()
        answer = await call(fake.app, "POST", path, (b"content-type", b"application/json"), body=[body])
    results = answer.json()["results"]
    assert (results[0]["index"], len(results)) == (1, 2)
    assert results[0]["relevance_score"] > results[1]["relevance_score"]


@pytest.mark.shows("G.8")
async def test_pairs_are_scored() -> None:
    async with api() as fake:
        scored = await fake.made("score", {"model": "fake", "text_1": "the cat", "text_2": ["the cat", "a bill"]})
    assert scored["data"][0]["score"] == pytest.approx(1)
    assert scored["data"][1]["score"] < 0.5


@pytest.mark.shows("G2.1")
@pytest.mark.parametrize("path", ["classify", "pooling"])
async def test_what_no_engine_does_is_a_404_that_says_so(path: str) -> None:
    async with api() as fake:
        for body in ({"model": "fake", "input": "a"}, {"input": "a"}):
            answer = await fake.post(path, body)
            assert (answer.status, answer.error["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(
    ("body", "param"),
    [(b'{"model": 1}', "model"), (b'{"model": ""}', "model"), (b"[]", None), (b"{", None), (b'{"a": NaN}', "a")],
)
async def test_only_good_json_is_passed_on(body: bytes, param: str | None) -> None:
    engine = Spy()
    async with api(engine=engine) as fake:
        answer = await fake.post("rerank", body)
    assert (answer.status, answer.error["param"], engine.heard) == (400, param, [])


async def test_there_is_an_end_to_what_is_ranked() -> None:
    async with api(engine=(engine := Spy()), limits=Limits(embedding_inputs=3)) as fake:
        answer = await fake.post("rerank", {"model": "fake", "query": "x", "documents": ["x"] * 4})
        assert (answer.status, answer.error["param"], engine.heard) == (400, "documents", [])
        await fake.made("rerank", {"model": "fake", "query": "x", "documents": ["x"] * 3})
        assert (
            await fake.post("pooling", {"model": "fake", "input": [1, 2, 3, 4]})
        ).status == 404  # tokens of one text


async def test_an_alias_is_the_engines_own_name_on_the_way_and_the_clients_on_the_way_back() -> None:
    engine = Spy()
    async with api(engine=engine, served_model_name=("mine",)) as fake:
        ranked = await fake.made("rerank", {"model": "mine", **CATS})
    [(model, deed, body, _)] = engine.heard
    assert (model, deed, json.loads(body)) == ("fake", "rerank", {"model": "fake", **CATS})
    assert ranked["model"] == "mine"


async def test_an_answer_that_is_not_json_is_the_engines_fault() -> None:
    async with api(engine=Spy(Relayed(b"<html>"))) as fake:
        answer = await fake.post("rerank", {"model": "fake", **CATS})
    assert (answer.status, answer.error["code"]) == (500, "server_error")


async def test_what_the_engine_refuses_is_refused() -> None:
    async with api() as fake:
        answer = await fake.post("rerank", {"model": "fake", "query": 1})
    assert answer.status == 400


@pytest.mark.shows("G2.1")
async def test_a_form_with_audio_is_passed_on_byte_for_byte_but_for_the_models_name() -> None:
    engine = Spy()
    async with api(engine=engine, served_model_name=("mine",)) as fake:
        sent = form(("model", "mine"), ("language", "de"))
        answer = await heard(fake, sent)
    [(model, deed, body, media_type)] = engine.heard
    assert (model, deed) == ("fake", "transcribe")
    assert body == form(("model", "fake"), ("language", "de"))
    assert media_type == FORM[1].decode()
    assert answer.json() == {"text": f"You sent {len(body)} bytes of multipart/form-data."}


async def test_translations_that_no_engine_makes_are_a_404() -> None:
    async with api() as fake:
        answer = await heard(fake, form(("model", "fake")), "/v1/audio/translations")
    assert (answer.status, answer.error["param"]) == (404, "model")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("text/vtt; charset=utf-8", b"text/vtt"),
        ("text/plain", b"text/plain"),
        ("text/html", b"application/octet-stream"),
    ],
)
async def test_an_answers_type_is_passed_on_if_it_is_harmless(said: str, shown: bytes) -> None:
    async with api(engine=Spy(Relayed(b"WEBVTT", said))) as fake:
        answer = await heard(fake, form(("model", "fake")))
    assert (answer.header(b"content-type"), answer.body) == (shown, b"WEBVTT")


async def test_who_wants_plain_text_gets_it_also_of_an_engine_that_says_it_in_json() -> None:
    async with api(engine=Spy(Relayed('{"text": "Größe"}'.encode()))) as fake:
        plain = await heard(fake, form(("model", "fake"), ("response_format", "text")))
        other = await heard(fake, form(("model", "fake"), ("response_format", "json")))
    assert (plain.header(b"content-type"), plain.body.decode()) == (b"text/plain", "Größe")
    assert other.json() == {"text": "Größe"}


async def test_an_answer_without_a_text_is_no_plain_text() -> None:
    async with api(engine=Spy(Relayed(b"[]"))) as fake:
        answer = await heard(fake, form(("model", "fake"), ("response_format", "text")))
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
async def test_what_is_no_whole_form_is_refused(body: bytes, param: str | None) -> None:
    async with api(engine=(engine := Spy())) as fake:
        answer = await heard(fake, body)
    assert (answer.status, answer.error["param"], engine.heard) == (400, param, [])


@pytest.mark.parametrize(
    "kind", [b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=" + b"x" * 71]
)
async def test_a_form_has_to_say_how_it_is_divided(kind: bytes) -> None:
    async with api() as fake:
        answer = await call(fake.app, "POST", "/v1/audio/transcriptions", (b"content-type", kind), body=[b"--x--"])
    assert answer.status in (400, 415)


async def test_an_audio_file_is_bounded() -> None:
    async with api(limits=Limits(audio_bytes=300)) as fake:
        assert (await heard(fake, form(("model", "fake")))).status == 200
        assert (await heard(fake, form(("model", "fake"), file=bytes(300)))).status == 413


class Choosy(FakeEngine):
    def serves(self, model: str) -> bool:
        return model == "fake"


async def test_a_model_that_is_not_here_is_a_404() -> None:
    async with api(engine=Choosy()) as fake:
        assert (await fake.post("rerank", {"model": "other", **CATS})).error["code"] == "model_not_found"
        assert (await fake.post("embeddings", {"model": "other", "input": "a"})).error["code"] == "model_not_found"


class Pooling(Spy):
    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), does=frozenset({"pooling"}))


@pytest.mark.shows("G2.1")
async def test_bare_bytes_are_passed_on_with_what_tells_where_each_vector_is() -> None:
    told = b'{"model": "fake", "data": [{"index": 0, "start": 0, "end": 4}]}'
    for metadata in (told, b""):
        engine = Pooling(Relayed(b"\x00\x00\x80\x3f", "application/octet-stream", metadata))
        async with api(engine=engine, served_model_name=("größer",)) as fake:
            answer = await fake.post("pooling", {"model": "größer", "input": "a", "encoding_format": "bytes"})
        assert (answer.status, answer.body) == (200, b"\x00\x00\x80\x3f")
        assert answer.header(b"content-type") == b"application/octet-stream"
        if metadata:
            assert json.loads(answer.header(b"metadata") or b"") == {**json.loads(told), "model": "größer"}
        else:
            assert answer.header(b"metadata") is None


async def test_bare_bytes_of_which_nothing_sensible_is_told_are_the_engines_fault() -> None:
    for metadata in (b"[]", b"no json"):
        async with api(engine=Pooling(Relayed(b"", "application/octet-stream", metadata))) as fake:
            assert (await fake.post("pooling", {"model": "fake", "input": "a"})).status == 500
