"""llama.cpp as an embedded engine: GGUF files of all kinds, on every platform.

During decode a closed connection frees its slot after the current token, during prefill after at most two batches.
"""

import logging
import platform
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from antiphon.core.prompt import IMAGE_MARKER
from antiphon.engines.embedded.base import DEFAULT_CONTEXT, DEFAULT_EMBEDDING_CONTEXT, ChildEngine, ChildEngineSettings
from antiphon.engines.embedded.embedding import EmbeddingModel, pooling_type
from antiphon.engines.embedded.model import LocalModel
from antiphon.engines.embedded.model_files import ModelSource, find_projector
from antiphon.engines.gguf import RANK, GgufHeader, read_header
from antiphon.engines.llamacpp.child import LlamaCppLaunch
from antiphon.engines.llamacpp.model import LlamaCppModel
from antiphon.engines.openvino.launch import PACKAGE, OpenVinoLaunch, can_encode
from antiphon.errors import StartupError

log = logging.getLogger(__name__)

X86 = ("x86_64", "AMD64")
SPARE_CONNECTIONS = 8  # threads of llama.cpp's HTTP server in addition to those that generate


class LlamaCppSettings(ChildEngineSettings, frozen=True, kw_only=True):
    gpu_layers: int | None = None
    batch_size: int | None = None  # prompt tokens per batch; None: a size that can be cancelled within a second


class LlamaCpp(ChildEngine):
    name = "llamacpp"
    settings: LlamaCppSettings

    def __init__(self, settings: LlamaCppSettings | None = None) -> None:
        super().__init__(settings or LlamaCppSettings())

    def create_model(self, source: ModelSource, path: Path) -> LocalModel:
        header = read_header(path)
        pooling = pooling_type(header)
        if pooling == RANK:
            raise StartupError(f"{path} is a model that ranks texts, which this engine does not serve.")
        launch = self._build_launch_spec(path, header, pooling)
        timeouts = self.settings.load_timeout, self.settings.idle_timeout
        if pooling is None:
            if projector := find_projector(source, self.settings.cache_dir):
                launch = replace(launch, projector=_check_projector(projector, source), image_marker=IMAGE_MARKER)
            return LlamaCppModel(source.id, header, launch, *timeouts)
        uses_openvino = self._prefers_openvino() and can_encode(header)
        log.info("%s embeds with %s", source.id, "OpenVINO" if uses_openvino else "llama.cpp")
        return EmbeddingModel(source.id, header, _to_openvino(launch) if uses_openvino else launch, *timeouts)

    def _build_launch_spec(self, path: Path, header: GgufHeader, pooling: int | None) -> LlamaCppLaunch:
        settings = self.settings
        default_context = DEFAULT_CONTEXT if pooling is None else DEFAULT_EMBEDDING_CONTEXT
        return LlamaCppLaunch(
            model=str(path.absolute()),
            context=self.limit_context(header.context, default_context),
            slots=settings.slots,
            threads=self.count_threads(),
            connections=2 * settings.slots + SPARE_CONNECTIONS,
            gpu_layers=settings.gpu_layers,
            batch=settings.batch_size,
            pooling=pooling,
        )

    def _prefers_openvino(self) -> bool:
        """Return whether OpenVINO embeds where it can: x86 CPUs then do more than twice as much in the same time."""
        is_excluded = self.settings.llamacpp_embeddings or self.settings.gpu_layers or platform.machine() not in X86
        return not is_excluded and find_spec(PACKAGE) is not None


def _check_projector(path: Path, source: ModelSource) -> str:
    """Return the path of a projector for images; empty if that of a repository is for audio."""
    if read_header(path).projects_images:
        return str(path.absolute())
    if source.projector is not None:
        raise StartupError(f"{path} is not the projector of a model for images: give its mmproj file, as FILE+MMPROJ.")
    return ""


def _to_openvino(launch: LlamaCppLaunch) -> OpenVinoLaunch:
    return OpenVinoLaunch(
        model=launch.model, context=launch.context, slots=launch.slots, threads=launch.threads, pooling=launch.pooling
    )
