"""Images that were made: what a model reads of them, how many it sees, and references to stored ones."""

import pytest
from msgspec import UNSET

from antiphon.core.image_generation import (
    MAX_SHOWN_CHARACTERS,
    MAX_SHOWN_IMAGES,
    StoredImage,
    describe_image,
    find_image_keys,
    get_generated_image,
    make_image_error,
    measure_image,
    parse_image_reference,
    take_latest,
)
from antiphon.errors import ServerRestarted
from antiphon.protocol.types.items import ImageGenerationCall
from antiphon.protocol.types.parts import InputImage

STORED = StoredImage(f"file-{'0' * 32}", 300)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (ImageGenerationCall(status="completed", result="aGk="), "An image was made and shown to the user."),
        (
            ImageGenerationCall(status="completed", result="aGk=", size="auto"),
            "An image was made and shown to the user.",
        ),
        (
            ImageGenerationCall(status="completed", result="aGk=", size="8x8"),
            "An image was made of 8x8 pixels and shown to the user.",
        ),
        (ImageGenerationCall(status="failed"), "No image was made."),
        (
            ImageGenerationCall(status="failed", error=make_image_error(ServerRestarted("It restarted."))),
            "Error: It restarted.",
        ),
    ],
)
def test_an_image_is_described_to_the_model(item: ImageGenerationCall, text: str) -> None:
    assert describe_image(item) == text


def test_a_model_sees_images_with_pixels() -> None:
    for item, url in (
        (ImageGenerationCall(status="failed", output_format="png"), None),
        (ImageGenerationCall(status="completed", result="aGk=", output_format="svg"), None),
        (ImageGenerationCall(status="completed", result="aGk="), "data:image/png;base64,aGk="),
        (ImageGenerationCall(status="completed", result="aGk=", output_format="webp"), "data:image/webp;base64,aGk="),
        (ImageGenerationCall(status="completed", result=str(STORED)), str(STORED)),
    ):
        assert get_generated_image(item) == (None if url is None else InputImage(image_url=url))


def test_a_prompt_shows_the_latest_images_up_to_both_limits() -> None:
    assert [*take_latest(range(40), lambda _: 1)] == [*range(MAX_SHOWN_IMAGES)]
    half = MAX_SHOWN_CHARACTERS // 2
    assert [*take_latest([half, half, 1], int)] == [half, half]
    assert [*take_latest([half, half + 1, 1], int)] == [half]


def test_an_image_is_measured_by_its_characters() -> None:
    assert measure_image(InputImage(image_url="data:,a")) == 7
    assert measure_image(InputImage(image_url=str(STORED))) == 400
    assert measure_image(InputImage(image_url=UNSET, file_id="file-1")) == 0


def test_references_to_stored_images_are_found() -> None:
    assert parse_image_reference(str(STORED)) == STORED
    assert parse_image_reference(f" {STORED}") is None
    quoted = f'["{STORED}", "{STORED}"]'.encode()
    assert find_image_keys(quoted, b"{}", str(STORED).encode()) == [STORED.key]
