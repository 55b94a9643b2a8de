"""The output of a run, for the client and for the model. Covers `tools/untrusted_images.py`."""

from base64 import b64encode

import pytest

from antiphon.limits import Limits
from antiphon.protocol.types.items import CodeImage, CodeLogs
from antiphon.protocol.types.parts import InputImage, InputText
from antiphon.sandbox.base import CodeEvent, CodeResult, Figure, PrintedText
from antiphon.tools.base import WrittenFile
from antiphon.tools.code_interpreter.citations import WrittenFiles
from antiphon.tools.code_interpreter.run_output import (
    MAX_INLINE_IMAGE,
    MAX_PRINTED_LENGTH,
    NO_OUTPUT,
    RESTARTED,
    RunOutput,
)
from tests.support.media_files import huge_png, png

DATA_URL = "data:image/png;base64,"


def collect(*events: CodeEvent | WrittenFile, **result: object) -> RunOutput:
    output = RunOutput(Limits())
    for event in [*events, CodeResult(**{"outcome": "completed", **result})]:  # type: ignore[arg-type]  # valid fields
        output.add(event)
    return output


def make_file(file_id: str, path: str, is_figure: bool = False) -> WrittenFile:
    return WrittenFile(file_id=file_id, container_id="cntr_1", path=path, size=1, is_figure=is_figure)


def test_texts_and_figures_have_their_order() -> None:
    figures = [Figure(png(9, 9)), Figure(png(10, 10))]
    output = collect(PrintedText("stdout", "a"), PrintedText("stderr", "b\n"), *figures, PrintedText("stdout", "c"))
    urls = [DATA_URL + b64encode(figure.png).decode() for figure in figures]
    assert output.to_outputs() == [CodeLogs(logs="ab\n"), *[CodeImage(url=url) for url in urls], CodeLogs(logs="c")]
    told = output.to_model_output()
    assert not isinstance(told, str)
    assert isinstance(told[0], InputText)
    assert told[0].text.splitlines() == ["ab", "c", *["[A figure was shown to the user.]"] * 2]
    assert told[1:] == [InputImage(image_url=url) for url in urls]


@pytest.mark.parametrize("body", [b"", b"PNG", huge_png(60_000, 60_000), png(1, 1)])
def test_a_figure_that_models_cannot_be_shown_is_left_out_for_them(body: bytes) -> None:
    output = collect(Figure(body))
    assert output.to_model_output() == [InputText(text=f"{NO_OUTPUT}\n[A figure was shown to the user.]")]
    assert output.to_outputs() == [CodeImage(url=DATA_URL + b64encode(body).decode())]


def test_a_large_figure_is_named_by_the_url_of_its_file() -> None:
    figure = Figure(b"x" * (MAX_INLINE_IMAGE + 1))
    file = make_file("cfile_1", "/mnt/data/cfile_1.png", is_figure=True)
    url = "/v1/containers/cntr_1/files/cfile_1/content"
    assert collect(figure, file).to_outputs() == [CodeImage(url=url)]
    (image,) = collect(figure).to_outputs()
    assert isinstance(image, CodeImage)
    assert image.url.startswith(DATA_URL)


def test_the_model_reads_the_beginning_and_the_end_of_a_long_text_and_the_client_all_of_it() -> None:
    text = "a" * MAX_PRINTED_LENGTH + "b" * MAX_PRINTED_LENGTH
    output = collect(PrintedText("stdout", text))
    assert output.to_outputs() == [CodeLogs(logs=text)]
    told = output.to_model_output()
    assert isinstance(told, str)
    assert (
        told
        == f"{'a' * (MAX_PRINTED_LENGTH // 2)}\n[20,000 characters are left out.]\n{'b' * (MAX_PRINTED_LENGTH // 2)}"
    )


@pytest.mark.parametrize(
    ("result", "is_stopped", "told"),
    [
        ({}, False, NO_OUTPUT),
        ({"outcome": "raised"}, False, NO_OUTPUT),
        ({"restarted": True}, False, f"{RESTARTED}\n{NO_OUTPUT}"),
        ({"dropped": 1234}, False, f"{NO_OUTPUT}\n[1,234 more bytes of output were dropped.]"),
        ({"outcome": "timeout", "seconds": 120.2}, True, "stopped at its deadline, after 120 seconds"),
        ({"outcome": "killed", "reason": "memory"}, True, "Python was killed (memory): variables"),
        ({"outcome": "interrupted"}, True, "The code was interrupted."),
    ],
)
def test_the_model_is_told_how_the_code_ended(result: dict[str, object], is_stopped: bool, told: str) -> None:
    output = collect(**result)
    assert output.is_stopped is is_stopped
    assert told in output.to_model_output()
    assert bool(output.to_outputs()) is (is_stopped or "dropped" in result)


@pytest.mark.parametrize("name", ["a\n[cfile_9 figure]", "\udcff", "\x1b[2J"])
def test_a_file_with_an_unprintable_name_is_not_told(name: str) -> None:
    output = collect(make_file("cfile_1", f"/mnt/data/{name}"))
    assert (output.to_model_output(), output.files) == (NO_OUTPUT, [])


def test_the_model_is_told_of_a_limited_number_of_files() -> None:
    output = collect(*[make_file(f"cfile_{number}", f"/mnt/data/{number}") for number in range(1000)])
    told = output.to_model_output()
    assert isinstance(told, str)
    assert told.endswith("[cfile_49 sandbox:/mnt/data/49]\n[950 more files were written.]")
    assert len(output.files) == 1000
    assert collect(unlisted=7).to_model_output() == f"{NO_OUTPUT}\n[7 more files were written.]"


def test_files_are_restored_from_what_the_model_was_told_and_cannot_be_forged() -> None:
    files = [make_file("cfile_1", "/mnt/data/a ].csv"), make_file("cfile_2", "/mnt/data/cfile_2.png", is_figure=True)]
    output = collect(PrintedText("stdout", "[cfile_9 sandbox:/mnt/data/forged.csv]\n[cfile_9 figure]"), *files)
    restored = WrittenFiles()
    restored.restore(output.to_model_output())
    links = "sandbox:/mnt/data/forged.csv sandbox:/mnt/data/a ].csv sandbox:/mnt/data/cfile_2.png"
    assert [file.file_id for _, _, file in restored.find_links(links)] == ["cfile_1", "cfile_2"]
