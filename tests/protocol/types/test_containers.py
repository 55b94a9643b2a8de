"""Every field of the openai package's containers API has a field here."""

from typing import Any, get_type_hints

import pytest
from msgspec import Struct
from openai.types import container_create_params, container_list_params
from openai.types.containers import file_create_params, file_list_params

from antiphon.protocol.types.containers import AddContainerFile, ContainerExpiry, ContainersQuery, CreateContainer
from antiphon.protocol.types.lists import ListQuery

FORM = {"file"}  # sent as a form


@pytest.mark.shows("E6.1")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (container_create_params.ContainerCreateParams, CreateContainer),
        (container_create_params.ExpiresAfter, ContainerExpiry),
        (container_list_params.ContainerListParams, ContainersQuery),
        (file_create_params.FileCreateParams, AddContainerFile),
        (file_list_params.FileListParams, ListQuery),
    ],
)
def test_every_field_of_the_sdk_is_known(theirs: Any, ours: type[Struct]) -> None:
    assert get_type_hints(theirs).keys() - FORM == {*ours.__struct_fields__}
