"""Identifies the engine at a web address, and finds engines on the usual ports of this machine.

`--engine http://HOST:PORT` does not name the kind of engine, on which the adapter depends. An engine is identified by
the owner that it reports for its models, or by a path that only one kind of engine has.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.engines.client import EngineClient, EngineHttpError, EngineTimeouts
from antiphon.engines.http.engine_url import parse_engine_url
from antiphon.engines.http.health_monitor import ANY_JSON
from antiphon.errors import EngineFailed, StartupError, Unavailable

log = logging.getLogger(__name__)

WEB_SCHEMES = frozenset({"http", "https"})  # URL schemes that do not name the kind of engine
USUAL_PORTS = (11434, 8000, 30000, 8080, 1234)  # Ollama, vLLM and OVMS, SGLang, llama.cpp, LM Studio
KINDS_BY_OWNER = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp-server"}
KINDS_BY_PATH = {"/api/version": "ollama", "/v3/models": "ovms"}
_OWN_NAME = "antiphon"  # the owner of models that another Antiphon serves
_TIMEOUTS = EngineTimeouts(connect=5.0, first_byte=10.0, idle=10.0)
_LOCAL_TIMEOUTS = EngineTimeouts(connect=0.5, first_byte=2.0, idle=2.0)


class OwnedCard(Struct):
    id: str
    owned_by: str | None = None


class OwnedCards(Struct):
    data: list[OwnedCard] | None = None


_CARDS = Decoder(OwnedCards)


class FoundEngine(Struct, frozen=True, kw_only=True):
    url: str  # as in --engine: vllm://127.0.0.1:8000
    models: tuple[str, ...] = ()
    owners: frozenset[str] = frozenset()


def identify_engines(config: Config) -> Config:
    """Return the settings with the kind of every engine that has a web address, and with the engines of `--discover`.

    Raises StartupError if an address does not answer: the kind cannot be known then.
    """
    specs = config.inference.specs
    if config.inference.discover:
        return _add_local_engines(config)
    if _is_default(config):
        _suggest_local_engines()
    unnamed = [spec for spec in specs if spec.kind in WEB_SCHEMES]
    if not unnamed:
        return config
    found = asyncio.run(_identify_all(unnamed))
    urls = {spec.url: engine.url for spec, engine in zip(unnamed, found, strict=True)}
    for spec, engine in zip(unnamed, found, strict=True):
        log.info("the engine at %s is used as %s", spec.address, engine.url)
    if config.inference.engines:
        tables = [replace(spec, url=urls.get(spec.url, spec.url)) for spec in config.inference.engines]
        return config.with_settings(engines=tuple(tables))
    return config.with_settings(engine=tuple([urls.get(spec.url, spec.url) for spec in specs]))


def _is_default(config: Config) -> bool:
    inference = config.inference
    return not inference.engines and inference.engine == "llamacpp" and not inference.model


def _suggest_local_engines() -> None:
    for engine in find_local_engines():
        models = ", ".join(engine.models[:5]) or "none"
        log.info("an engine runs on this machine, with the models %s; to use it: --engine %s", models, engine.url)


def _add_local_engines(config: Config) -> Config:
    if not _is_default(config):
        raise StartupError("--discover looks for engines itself: leave out --engine, [[engines]] and --model.")
    found = find_local_engines()
    if not found:
        log.warning("--discover found no engine on the ports %s; the embedded engine is used", _list_ports())
        return config
    for engine in found:
        log.info("found %s with the models %s", engine.url, ", ".join(engine.models[:5]) or "none")
    return config.with_settings(engine=tuple([engine.url for engine in found]))


def find_local_engines(ports: Sequence[int] | None = None) -> list[FoundEngine]:
    """Return the engines on these ports of the loopback interface. Other servers with Antiphon are not among them."""

    async def find_all() -> list[FoundEngine | None]:
        return await asyncio.gather(*(_find_local(port) for port in ports or USUAL_PORTS))

    return [engine for engine in asyncio.run(find_all()) if engine is not None]


def _list_ports() -> str:
    return ", ".join(map(str, USUAL_PORTS))


async def _find_local(port: int) -> FoundEngine | None:
    try:
        found = await identify_engine(f"http://127.0.0.1:{port}", timeouts=_LOCAL_TIMEOUTS)
    except StartupError:
        return None
    return None if _OWN_NAME in found.owners else found


async def _identify_all(specs: Sequence[EngineSpec]) -> list[FoundEngine]:
    return await asyncio.gather(*(identify_engine(spec.url, spec.key, spec.ca) for spec in specs))


async def identify_engine(
    url: str, key: str | None = None, ca: Path | None = None, timeouts: EngineTimeouts = _TIMEOUTS
) -> FoundEngine:
    """Return the engine at http://HOST:PORT or https://HOST:PORT, with or without the path of its API."""
    scheme, _, location = url.partition("://")
    address = location.rstrip("/").removesuffix("/v1").removesuffix("/v3")
    parsed = parse_engine_url(f"openai+{scheme}://{address}", 443 if scheme == "https" else 80, ca)
    client = EngineClient(parsed.address, url, timeouts, host=parsed.host, key=key, base_path=parsed.path)
    try:
        cards = await _fetch_cards(client)
        owners = frozenset([card.owned_by or "" for card in cards or []])
        kind = await _find_kind(client, owners)
    except (EngineFailed, Unavailable) as error:
        raise StartupError(f"The engine at {url} cannot be identified: {error} {_make_hint(address)}")
    finally:
        client.close()
    if kind is None and cards is None:
        raise StartupError(f"Nothing at {url} lists models at /v1/models. {_make_hint(address)}")
    path = "" if kind else "/v1"
    transport = "+https" if scheme == "https" else ""
    return FoundEngine(
        url=f"{kind or 'openai'}{transport}://{address}{path}",
        models=tuple([card.id for card in cards or []]),
        owners=owners,
    )


def _make_hint(address: str) -> str:
    return f"Name the kind of engine instead, such as vllm://{address} or openai://{address}/v1."


async def _fetch_cards(client: EngineClient) -> list[OwnedCard] | None:
    try:
        return (await client.get("/v1/models", _CARDS)).data or []
    except EngineHttpError as error:
        if error.status_code in (401, 403):
            raise
        return None


async def _find_kind(client: EngineClient, owners: frozenset[str]) -> str | None:
    named = owners & KINDS_BY_OWNER.keys()
    if named:
        return KINDS_BY_OWNER[min(named)]
    for path, kind in KINDS_BY_PATH.items():
        try:
            await client.get(path, ANY_JSON)
        except EngineFailed:
            continue
        return kind
    return None
