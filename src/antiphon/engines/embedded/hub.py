"""Models on the Hugging Face Hub: which of the files of a repository belong to a model, and their download.

`hub_client.py` makes the requests. A download continues an earlier one, also of another process; `model_files.py`
verifies the hashes that the hub reports.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.embedded.known_models import HubModel, ModelFile
from antiphon.errors import StartupError

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
PROJECTOR_QUANTS = ("Q8_0", "BF16", "F16")
MISSING = "Models of the Hugging Face Hub need one more package: pip install 'antiphon[hub]'."

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(
    r"(?<![a-z0-9])((?:ud-)?(?:i?q\d|tq\d|mxfp4|nvfp4|bf16|fp?16|fp?32)(?:_\w+)?)(?![a-z0-9])", re.IGNORECASE
)


class HubVariant(Struct, frozen=True, kw_only=True):
    """One of the models in a repository, mostly a quantisation: its files in their order, all of them needed."""

    repo: str
    commit: str
    name: str  # of the file, without the number of a part
    files: tuple[ModelFile, ...]
    projector: ModelFile | None = None  # for images, which all variants share

    @property
    def all_files(self) -> tuple[ModelFile, ...]:
        return self.files if self.projector is None else (*self.files, self.projector)

    @property
    def quant(self) -> str:
        """The quantisation, by the name of the file; the name itself if it contains none."""
        found = _QUANT.findall(self.name)
        return found[-1].upper() if found else self.name

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.all_files)


def find_variant(model: HubModel) -> HubVariant:
    """Ask the hub for the files of a model; raises StartupError."""
    commit, files = _import_client().list_files(model.repo)
    variants = group_variants(model.repo, commit, filter(_is_model, files))
    if not variants:
        raise StartupError(f"{model.repo} has no GGUF file; look for a repository whose name ends with GGUF.")
    variant = replace(select_variant(model, variants), projector=_choose_projector(files))
    _check_parts(variant)
    return variant


def _choose_projector(files: Iterable[ModelFile]) -> ModelFile | None:
    """Return the projector of the repository, the best of several quantisations."""
    found = [file for file in files if file.file.lower().endswith(".gguf") and "mmproj" in file.file.lower()]
    quants = [*PROJECTOR_QUANTS, ""]
    return min(
        found, key=lambda file: next(n for n, quant in enumerate(quants) if quant in file.file.upper()), default=None
    )


def _is_model(file: ModelFile) -> bool:
    name = file.file.lower()
    return name.endswith(".gguf") and "mmproj" not in name and "imatrix" not in name


def group_variants(repo: str, commit: str, files: Iterable[ModelFile]) -> list[HubVariant]:
    """Group the parts of models."""
    groups: dict[str, list[ModelFile]] = {}
    for file in sorted(files, key=lambda file: file.file):
        groups.setdefault(_PART.sub("", PurePosixPath(file.file).stem), []).append(file)
    return [HubVariant(repo=repo, commit=commit, name=name, files=tuple(group)) for name, group in groups.items()]


def select_variant(model: HubModel, variants: Sequence[HubVariant]) -> HubVariant:
    """Return the variant that the reference names, or the default one; raises StartupError."""
    wanted = model.variant.removesuffix(".gguf")
    if wanted:
        found = [one for one in variants if wanted == one.name] or [
            one for one in variants if wanted.upper() == one.quant
        ]
    else:
        defaults = ([one for one in variants if one.quant == quant] for quant in DEFAULT_QUANTS)
        found = next((one for one in defaults if one), list(variants))
    if len(found) == 1:
        return found[0]
    reason = f"has no {wanted}" if wanted and not found else "has several models"
    quants = [one.quant for one in found or variants]
    names = sorted(quants if len({*quants}) == len(quants) else [one.name for one in found or variants])
    raise StartupError(f"{model.repo} {reason}; write hf:{model.repo}:NAME with one of {', '.join(names)}.")


def _check_parts(variant: HubVariant) -> None:
    match = _PART.search(PurePosixPath(variant.files[0].file).stem)
    if match and len(variant.files) != int(match[2]):
        raise StartupError(
            f"{variant.name} in {variant.repo} is incomplete: {len(variant.files)} of {int(match[2])} files are there."
        )
    for file in variant.all_files:
        if not _SHA256.fullmatch(file.sha256):
            raise StartupError(f"The hub reports no hash of {file.file} in {variant.repo}, so it cannot be verified.")


def download_file(variant: HubVariant, file: ModelFile, part: Path, report: Callable[[int], None]) -> None:
    """Download the missing bytes of a file into `part`; `report` receives those that are there. Raises StartupError."""
    if part.is_file() and part.stat().st_size > file.bytes:
        part.unlink()
    _import_client().download_file(variant.repo, variant.commit, file, part, report)


def _import_client() -> Any:
    """Import the client on first use, since a model that was downloaded needs no hub."""
    try:
        return import_module("antiphon.engines.embedded.hub_client")
    except ModuleNotFoundError:
        raise StartupError(MISSING) from None
