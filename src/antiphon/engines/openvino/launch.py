"""The parameters of the child process of OpenVINO."""

from typing import ClassVar

from antiphon.engines.embedded.child import LaunchSpec


class OpenVinoLaunch(LaunchSpec, frozen=True, kw_only=True):
    """`model` is a GGUF file or a folder in OpenVINO's format."""

    program: ClassVar[str] = "antiphon.engines.openvino.child"
    converted: str = ""  # folder for the converted form of a GGUF file
    vocabulary_size: int
    control_tokens: tuple[int, ...]  # omitted from texts
    batch: int  # tokens computed in one step
    cache_tokens: int  # of all generations together
    draft_model: str = ""
    prompt_lookup: bool = False
