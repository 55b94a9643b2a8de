"""Requests to the Hugging Face Hub, by huggingface_hub. `hub.py` imports this module on first use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, constants, errors, hf_hub_url
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of its HTTP client, which may change
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, but not listed there

from antiphon.engines.embedded.known_models import ModelFile
from antiphon.errors import StartupError

TIMEOUT_SECONDS = 30.0


def list_files(repo: str) -> tuple[str, list[ModelFile]]:
    """Return the commit of a repository and its files; those that are not in large-file storage have no hash."""
    with _explain_errors(repo):
        info = HfApi().model_info(repo, files_metadata=True, timeout=TIMEOUT_SECONDS)
    files = [
        ModelFile(file=file.rfilename, bytes=file.size or 0, sha256=file.lfs.sha256 if file.lfs else "")
        for file in info.siblings or ()
    ]
    return info.sha or constants.DEFAULT_REVISION, files


def download_file(repo: str, commit: str, file: ModelFile, part: Path, report: Callable[[int], None]) -> None:
    """Download what `part` does not have of a file yet; `report` receives the bytes that are there."""
    with _explain_errors(repo), part.open("ab") as output:
        http_get(
            hf_hub_url(repo, file.file, revision=commit),
            output,
            resume_size=output.tell(),
            headers=build_hf_headers(),
            expected_size=file.bytes,
            tqdm_class=lambda **bar: _ProgressBar(report, bar["initial"]),  # type: ignore[arg-type]  # it only calls it
        )


class _ProgressBar:
    """A progress bar as huggingface_hub calls it."""

    def __init__(self, report: Callable[[int], None], done: int) -> None:
        self._report = report
        self._done = done

    def __enter__(self) -> "_ProgressBar":
        return self

    def __exit__(self, *error: object) -> None: ...

    def update(self, count: int) -> None:
        self._done += count
        self._report(self._done)


@contextmanager
def _explain_errors(repo: str) -> Iterator[None]:
    """Convert errors of huggingface_hub to StartupErrors."""
    address = constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError:
        raise StartupError(
            f"{repo} is gated: accept its terms at {address}/{repo}, and set HF_TOKEN to a token of that account."
        ) from None
    except errors.RepositoryNotFoundError:
        raise StartupError(
            f"There is no model {repo} at {address}, or it is private: correct the name, or set HF_TOKEN."
        ) from None
    except errors.HfHubHTTPError as error:
        raise StartupError(_explain_status(error.response.status_code, repo, address)) from None
    except (HTTPError, errors.OfflineModeIsEnabled) as error:
        raise StartupError(
            f"The hub at {address} cannot be reached: {str(error).splitlines()[0] or type(error).__name__}. "
            "Check the network and HF_ENDPOINT; a model that was pulled before needs no network."
        ) from None
    except errors.HFValidationError:
        raise StartupError(f"{repo} is not the name of a model on the hub; expected ORG/REPO.") from None
    except OSError as error:
        if error.errno is not None:  # of this machine
            raise
        raise StartupError(f"The download from {repo} ended too early; try again to continue it.") from None


def _explain_status(status: int, repo: str, address: str) -> str:
    if status in (401, 403):
        return f"{address} refuses access to {repo} (HTTP {status}): set HF_TOKEN to a token that may read it."
    return f"{address} returned HTTP {status} for {repo}; try again later."
