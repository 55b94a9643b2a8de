"""The parameters of the child process of OpenVINO, and for which GGUF files of encoders it can be started."""

from typing import ClassVar

from antiphon.engines.embedded.child import LaunchSpec
from antiphon.engines.gguf import GgufHeader

PACKAGE = "openvino_genai"
FLOATS = frozenset({0, 1})  # GGUF types: 32 and 16 bits


class OpenVinoLaunch(LaunchSpec, frozen=True, kw_only=True):
    """`model` is a GGUF file or a folder in OpenVINO's format. The other fields are for models that generate."""

    program: ClassVar[str] = "antiphon.engines.openvino.child"
    converted: str = ""  # folder for the converted form of a GGUF file
    vocabulary_size: int = 0
    control_tokens: tuple[int, ...] = ()  # omitted from texts
    batch: int = 0  # tokens computed in one step
    cache_tokens: int = 0  # of all generations together
    draft_model: str = ""
    prompt_lookup: bool = False


def can_encode(header: GgufHeader) -> bool:
    """Return whether this is a BERT encoder whose graph can be built: with WordPiece, and not quantised."""
    return (
        (header.architecture, header.tokenizer) == ("bert", "bert")
        and FLOATS.issuperset(header.tensor_kinds.values())
        and {"token_types.weight", "blk.0.attn_q.bias", "blk.0.ffn_up.bias"} <= header.tensor_kinds.keys()
    )
