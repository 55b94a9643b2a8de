"""The models of the server and what clients want to know about each, for `GET /v1/models` and for their set-up."""

from antiphon.engines.base import Capabilities, Model, Task
from antiphon.errors import AntiphonError
from antiphon.parsers.detection import is_reasoning_model
from antiphon.protocol.types.operations.models import Modality, ModelObject
from antiphon.service.images import Images
from antiphon.service.model_io.models import Models
from antiphon.service.model_io.served_model import ServedModel

_EFFORT = "reasoning.effort"
_EFFORTS = ["low", "medium", "high"]  # that every model with an effort distinguishes or maps
_PARTS: dict[str, Modality] = {"input_image": "image", "input_audio": "audio"}
_TASKS: dict[Task, tuple[Modality, Modality]] = {
    "generate": ("text", "text"),
    "embed": ("text", "embedding"),
    "transcribe": ("audio", "text"),
    "speak": ("text", "audio"),
}


class ModelCatalog:
    def __init__(self, models: Models, images: Images | None = None) -> None:
        self._models = models
        self._images = images

    async def list_models(self) -> list[ModelObject]:
        """Describe all models; those of image services that no engine has under the same name come last."""
        described = [await self._describe(model) for model in self._models.models()]
        names = {model.id for model in described}
        return [*described, *(model for model in self._list_image_models() if model.id not in names)]

    async def find(self, name: str) -> ModelObject:
        """Describe a model, also one that is not listed. Raises ModelNotFound."""
        found = [model for model in await self.list_models() if model.id == name]
        return found[0] if found else await self._describe(self._models.model(name))

    def _list_image_models(self) -> list[ModelObject]:
        names = [] if self._images is None else self._images.models
        return [ModelObject(id=name, input_modalities=["text"], output_modalities=["image"]) for name in names]

    async def _describe(self, model: Model) -> ModelObject:
        """Describe a model, without more than its name if its engine does not respond: the list has to be complete."""
        try:
            served = self._models.find(model.id)
            return _describe_model(model, served, await served.capabilities())
        except AntiphonError:
            return ModelObject(id=model.id, created=model.created, owned_by=model.owned_by)


def _describe_model(model: Model, served: ServedModel, capabilities: Capabilities) -> ModelObject:
    fields, limits = capabilities.supported_fields, served.output_limits
    kinds = [kinds for task, kinds in _TASKS.items() if task in capabilities.tasks]
    parts = [kind for name, kind in _PARTS.items() if name in fields]
    has_effort = _EFFORT in fields and _EFFORT not in capabilities.unconfirmed_fields
    reasons = "reasoning" in capabilities.parsers or is_reasoning_model(served.model, capabilities.parser_choice)
    return ModelObject(
        id=model.id,
        created=model.created,
        owned_by=model.owned_by,
        context_length=capabilities.context,
        max_output_tokens=None if limits is None else limits.maximum,
        input_modalities=[*dict.fromkeys([*(kind for kind, _ in kinds), *parts])],
        output_modalities=[*dict.fromkeys(kind for _, kind in kinds)],
        tools="tools" in fields,
        reasoning=has_effort or reasons,
        reasoning_efforts=_EFFORTS if has_effort else [],
    )
