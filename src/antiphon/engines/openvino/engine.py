"""OpenVINO as an embedded engine: GGUF files and folders in OpenVINO's format, for many streams on x86 CPUs."""

from importlib.util import find_spec
from pathlib import Path

from antiphon.engines.embedded.base import DEFAULT_CONTEXT, DEFAULT_EMBEDDING_CONTEXT, ChildEngine, ChildEngineSettings
from antiphon.engines.embedded.embedding import EmbeddingModel, pooling_type
from antiphon.engines.embedded.model import LocalModel
from antiphon.engines.embedded.model_files import ModelSource
from antiphon.engines.gguf import RANK, GgufHeader
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.openvino.converted_models import find_converted
from antiphon.engines.openvino.launch import PACKAGE, OpenVinoLaunch
from antiphon.engines.openvino.model import OpenVinoModel, check_folder, read_model_header
from antiphon.engines.openvino.ranking import RankingModel
from antiphon.errors import StartupError

MISSING = "The openvino engine needs the package openvino-genai: pip install 'antiphon[openvino]'."
DEFAULT_SLOTS = 32
DEFAULT_CACHE_TOKENS = 32_768
BATCH_TOKENS = 256  # computed in a third of a second by two cores: a cancelled prompt ends within a second
# Families that OpenVINO reads from GGUF files.
GGUF_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3", "smollm3"})


class OpenVinoSettings(ChildEngineSettings, frozen=True, kw_only=True):
    slots: int = DEFAULT_SLOTS
    batch_size: int | None = None  # tokens per step, of all generations together
    cache_tokens: int = DEFAULT_CACHE_TOKENS  # of all generations of a model together
    draft_model: Path | None = None  # a smaller model with the same vocabulary
    prompt_lookup: bool = False  # tokens are guessed from the prompt


class OpenVino(ChildEngine):
    name = "openvino"
    settings: OpenVinoSettings

    def __init__(self, settings: OpenVinoSettings | None = None) -> None:
        settings = settings or OpenVinoSettings()
        super().__init__(settings)
        if settings.draft_model is not None and settings.prompt_lookup:
            raise StartupError("--openvino-draft-model and --openvino-prompt-lookup exclude each other.")
        if settings.draft_model is not None:
            check_folder(settings.draft_model)
        common = {name: getattr(settings, name) for name in ChildEngineSettings.__struct_fields__}
        self._llamacpp = LlamaCpp(LlamaCppSettings(**common))  # for GGUF files of embedding models

    async def open(self) -> None:
        if find_spec(PACKAGE) is None:
            raise StartupError(MISSING)
        await super().open()

    def create_model(self, source: ModelSource, path: Path) -> LocalModel:
        if source.projector is not None:
            raise StartupError("The openvino engine takes no projector for images: use --engine llamacpp.")
        header = read_model_header(path)
        if (pooling := pooling_type(header)) is not None:
            return self._create_encoder(source, path, header, pooling)
        if not path.is_dir() and header.architecture not in GGUF_ARCHITECTURES:
            raise StartupError(
                f"{path} has the architecture {header.architecture}, which OpenVINO does not read from GGUF files. "
                "Convert the model with optimum-cli, or use --engine llamacpp."
            )
        launch = self._build_launch(path, header)
        return OpenVinoModel(source.id, header, launch, self.settings.load_timeout, self.settings.idle_timeout)

    def _create_encoder(self, source: ModelSource, path: Path, header: GgufHeader, pooling: int) -> LocalModel:
        """Create a model that embeds or ranks; the engine of GGUF files chooses what computes them."""
        if not path.is_dir():
            return self._llamacpp.create_model(source, path)
        settings = self.settings
        launch = OpenVinoLaunch(
            model=str(path.absolute()),
            context=self.limit_context(header.context, DEFAULT_EMBEDDING_CONTEXT),
            slots=settings.slots,
            threads=self.count_threads(),
            pooling=pooling,
        )
        kind = RankingModel if pooling == RANK else EmbeddingModel
        return kind(source.id, header, launch, settings.load_timeout, settings.idle_timeout)

    def _build_launch(self, path: Path, header: GgufHeader) -> OpenVinoLaunch:
        settings = self.settings
        context = self.limit_context(header.context, DEFAULT_CONTEXT)
        return OpenVinoLaunch(
            model=str(path.absolute()),
            converted="" if path.is_dir() else str(find_converted(path, settings.cache_dir)),
            context=context,
            slots=settings.slots,
            threads=self.count_threads(),
            batch=max(settings.batch_size or BATCH_TOKENS, settings.slots),
            cache_tokens=max(settings.cache_tokens, context),
            vocabulary_size=header.vocabulary_size,
            control_tokens=tuple(header.control_tokens.values()),
            draft_model="" if settings.draft_model is None else str(settings.draft_model.absolute()),
            prompt_lookup=settings.prompt_lookup,
        )
