"""Bodies of the vector stores API, with the checks that their types cannot express."""

from typing import Any

from antiphon.errors import MissingParameter, invalid_value, mutually_exclusive
from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_filter, check_metadata, check_ranking
from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.decoding.normalise import drop_nulls, filter_objects
from antiphon.protocol.types import vector_stores as wire
from antiphon.protocol.types.filters import Attributes
from antiphon.protocol.types.tools import Json

_MAX_QUERY_CHARACTERS = 20_000  # of all queries of a search together

_MAX_INTEGER = 2**63 - 1


def _keep_nulls(raw: Json) -> None:
    """Nulls remove values."""


def _normalise_batch(raw: Json) -> None:
    drop_nulls(raw)
    for file in filter_objects(raw.get("files")):
        drop_nulls(file)


_create_decoder = RequestDecoder(wire.CreateVectorStore)
_update_decoder = RequestDecoder(wire.UpdateVectorStore, _keep_nulls)
_file_decoder = RequestDecoder(wire.AddVectorStoreFile)
_attributes_decoder = RequestDecoder(wire.UpdateVectorStoreFile, _keep_nulls)
_batch_decoder = RequestDecoder(wire.CreateFileBatch, _normalise_batch)
_search_decoder = RequestDecoder(wire.SearchVectorStore)


def decode_vector_store(body: bytes, limits: Limits) -> tuple[wire.CreateVectorStore, list[str]]:
    request, ignored = _create_decoder.decode_body(body, limits)
    _check_text(request.name, "name", limits)
    _check_text(request.description, "description", limits)
    _check_chunking(request.chunking_strategy, "chunking_strategy")
    check_metadata(request.metadata, limits)
    if request.chunking_strategy is not None and not request.file_ids:
        ignored.append("chunking_strategy")
    return request, ignored


def decode_vector_store_update(body: bytes, limits: Limits) -> tuple[wire.UpdateVectorStore, list[str]]:
    request, ignored = _update_decoder.decode_body(body, limits)
    _check_text(request.name or "", "name", limits)
    check_metadata(request.metadata or {}, limits)
    return request, ignored


def decode_store_file(body: bytes, limits: Limits) -> tuple[wire.AddVectorStoreFile, list[str]]:
    request, ignored = _file_decoder.decode_body(body, limits)
    _check_file(request, "", limits)
    return request, ignored


def decode_attributes(body: bytes, limits: Limits) -> tuple[wire.UpdateVectorStoreFile, list[str]]:
    request, ignored = _attributes_decoder.decode_body(body, limits)
    _check_attributes(request.attributes or {}, "attributes", limits)
    return request, ignored


def decode_file_batch(body: bytes, limits: Limits) -> tuple[wire.CreateFileBatch, list[str]]:
    """Decode a batch, and set its `files`. Fields that hold for all files are ignored beside it, as by OpenAI."""
    request, ignored = _batch_decoder.decode_body(body, limits)
    if request.files is not None:
        if request.file_ids is not None:
            raise mutually_exclusive("files", "file_ids")
        ignored += [name for name in ("attributes", "chunking_strategy") if getattr(request, name)]
        if len({file.file_id for file in request.files}) < len(request.files):
            raise invalid_value("files", "it names a file twice")
    elif request.file_ids is None:
        raise MissingParameter("Missing required parameter: 'file_ids' or 'files'.", param="file_ids")
    else:
        shared: dict[str, Any] = {"attributes": request.attributes, "chunking_strategy": request.chunking_strategy}
        request.file_ids = [*dict.fromkeys(request.file_ids)]
        request.files = [wire.AddVectorStoreFile(file_id=file_id, **shared) for file_id in request.file_ids]
    for index, file in enumerate(request.files):
        _check_file(file, "" if request.file_ids is not None else f"files[{index}].", limits)
    return request, ignored


def decode_search(body: bytes, limits: Limits) -> tuple[wire.SearchVectorStore, list[str]]:
    request, ignored = _search_decoder.decode_body(body, limits)
    queries = [request.query] if isinstance(request.query, str) else request.query
    if not all(map(str.strip, queries)):
        raise invalid_value("query", "it is empty")
    if (length := sum(map(len, queries))) > _MAX_QUERY_CHARACTERS:
        raise invalid_value("query", f"it has {length:,} characters; at most {_MAX_QUERY_CHARACTERS:,} are allowed")
    check_filter(request.filters, "filters")
    check_ranking(request.ranking_options, "ranking_options")
    return request, ignored


def _check_file(file: wire.AddVectorStoreFile, prefix: str, limits: Limits) -> None:
    _check_chunking(file.chunking_strategy, f"{prefix}chunking_strategy")
    _check_attributes(file.attributes, f"{prefix}attributes", limits)


def _check_chunking(strategy: wire.ChunkingStrategy | None, param: str) -> None:
    if isinstance(strategy, wire.StaticChunking):
        sizes, name = strategy.static, f"{param}.static.chunk_overlap_tokens"
        if sizes.chunk_overlap_tokens * 2 > sizes.max_chunk_size_tokens:
            raise invalid_value(name, "it is more than half of 'max_chunk_size_tokens'")


def _check_attributes(attributes: Attributes, param: str, limits: Limits) -> None:
    """Check attributes, which have the limits of metadata."""
    if any(isinstance(value, int) and abs(value) > _MAX_INTEGER for value in attributes.values()):
        raise invalid_value(param, "an integer has more than 64 bits")
    texts = {key: value if isinstance(value, str) else "" for key, value in attributes.items()}
    check_metadata(texts, limits, param)


def _check_text(text: str | None, param: str, limits: Limits) -> None:
    if text and (len(text) > limits.id_length or "\0" in text):  # PostgreSQL rejects NUL in text
        raise invalid_value(param, f"it has at most {limits.id_length} characters, without NUL")
