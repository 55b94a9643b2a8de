"""A model that generates with OpenVINO: its requests, and the header of a folder in OpenVINO's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from antiphon.core.prompt import GenerationRequest, Json
from antiphon.engines.embedded.model import LocalModel
from antiphon.engines.gguf import CLS, LAST, MEAN, RANK, GgufHeader, read_header
from antiphon.engines.openvino import wire
from antiphon.engines.openvino.launch import OpenVinoLaunch
from antiphon.errors import ContextTooLong, StartupError

MODEL_FILE = "openvino_model.xml"
MAX_TOKEN_BYTES = 512  # of a folder, whose vocabulary is not read
MAX_JSON_BYTES = 64 * 1024 * 1024


class OpenVinoModel(LocalModel):
    unsupported_reasons: ClassVar[dict[str, str]] = wire.UNSUPPORTED_REASONS

    def __init__(
        self, id: str, header: GgufHeader, launch: OpenVinoLaunch, load_timeout: float, idle_timeout: float
    ) -> None:
        super().__init__(id, header, launch, load_timeout, idle_timeout)
        self._assistant = "draft" if launch.draft_model else "lookup" if launch.prompt_lookup else ""
        fields = {"draft": wire.DRAFT_FIELDS, "lookup": wire.LOOKUP_FIELDS}.get(self._assistant, frozenset())
        self.supported_fields = wire.SUPPORTED_FIELDS | fields
        self._control_tokens = header.control_tokens
        self._end_tokens = wire.list_end_tokens(header)

    async def build_completion(self, request: GenerationRequest, tokens: Sequence[int]) -> Json:
        sampling, room = request.sampling, self._launch.context - len(tokens)
        if room <= 0:
            raise ContextTooLong(
                f"The input has {len(tokens)} tokens, and this model takes {self._launch.context} with the answer.",
                param="input",
            )
        self.check_token_ids(tokens, "input")
        visible = self.list_visible_tokens(request)
        return {
            "prompt": tokens,
            "config": wire.build_config(sampling, room, self._assistant),
            "structured": wire.to_structured_output(request.constraint),
            "end_tokens": [] if sampling.ignore_eos else self._end_tokens,
            "stop": sampling.stop,
            "visible_tokens": [self._control_tokens[text] for text in visible if text in self._control_tokens],
            "beam": sampling.beam,
            "logprobs": sampling.logprobs is not None,
        }


def check_folder(folder: Path) -> None:
    if not (folder / MODEL_FILE).is_file():
        raise StartupError(f"{folder} is not a model in OpenVINO's format: it has no {MODEL_FILE}.")


def read_model_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file or of a folder."""
    return read_folder_header(path) if path.is_dir() else read_header(path)


def read_folder_header(folder: Path) -> GgufHeader:
    """Read what a GGUF header has from the JSON files that converters write beside the model."""
    check_folder(folder)
    config = _read_json(folder / "config.json")
    if not isinstance(config.get("vocab_size"), int):
        raise StartupError(f"{folder} is not a language model: its config.json has no vocab_size.")
    pooling = _find_pooling(folder, config)
    tokenizer = _read_json(folder / "tokenizer_config.json")
    template = folder / "chat_template.jinja"
    special = _list_special_tokens(folder, tokenizer)
    bos = _text_of(tokenizer.get("bos_token"))
    return GgufHeader(
        architecture=str(config.get("model_type", "")),
        name=folder.name,
        context=_find_context(config, tokenizer, pooling),
        template=template.read_text("utf-8") if template.is_file() else tokenizer.get("chat_template"),
        bos=bos,
        bos_id=special.get(bos),
        eos=_text_of(tokenizer.get("eos_token")),
        control_tokens=special,
        markup_tokens={},
        vocabulary_size=config["vocab_size"],
        max_token_bytes=MAX_TOKEN_BYTES,
        embedding_size=config.get("hidden_size"),
        pooling=pooling,
    )


def _find_context(config: Json, tokenizer: Json, pooling: int | None) -> int | None:
    """Return the context. The positions of some encoders begin at 2, so their tokenizers have the lower limit."""
    limits = [config.get("max_position_embeddings"), tokenizer.get("model_max_length") if pooling is not None else None]
    return min([limit for limit in limits if isinstance(limit, int)], default=None)


def _find_pooling(folder: Path, config: Json) -> int | None:
    """Return the pooling type of a model that embeds, which sentence-transformers writes beside it, or that ranks."""
    [architecture] = [*config.get("architectures", ()), ""][:1]
    if architecture.endswith("ForSequenceClassification"):
        return RANK
    modes = _read_json(folder / "1_Pooling" / "config.json")
    if modes.get("pooling_mode_cls_token"):
        return CLS
    if modes.get("pooling_mode_lasttoken"):
        return LAST
    is_encoder = architecture.endswith(("Model", "ForMaskedLM")) and "LMHead" not in architecture
    return MEAN if modes or is_encoder else None


def _list_special_tokens(folder: Path, tokenizer: Json) -> dict[str, int]:
    added = tokenizer.get("added_tokens_decoder") or {
        str(token["id"]): token for token in _read_json(folder / "tokenizer.json").get("added_tokens", ())
    }
    return {token["content"]: int(id) for id, token in added.items() if token.get("special")}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > MAX_JSON_BYTES:
            raise StartupError(f"{path} is larger than {MAX_JSON_BYTES} bytes.")
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise StartupError(f"{path} cannot be read: {error}.") from None


def _text_of(token: Any) -> str:
    """Return the text of a token, which is a string or an object in tokenizer_config.json."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
