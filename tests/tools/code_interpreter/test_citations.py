"""Files that code has written are cited where the answer links them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Citation, Delta, ReasoningDelta, Text
from antiphon.protocol.types.parts import ContainerFileCitation, InputText
from antiphon.tools.base import WrittenFile
from antiphon.tools.code_interpreter.citations import ContainerFileRewriter, WrittenFiles
from tests.parsers.cuts import CUTS, split_at

LINK = "sandbox:/mnt/data/a.csv"


def make_file(path: str, is_figure: bool = False) -> WrittenFile:
    name = path.rpartition("/")[2]
    return WrittenFile(file_id=f"cfile_{name}", container_id="cntr_1", path=path, size=1, is_figure=is_figure)


def make_rewriter(*paths: str, figures: int = 0) -> ContainerFileRewriter:
    files = WrittenFiles()
    files.add([make_file(f"/mnt/data/{path}") for path in paths or ("a.csv", "a.csv.gz", "my plot.png")])
    files.add([make_file(f"/mnt/data/cfile_{number}.png", is_figure=True) for number in range(figures)])
    return ContainerFileRewriter(files, "cntr_1", lists_outputs=False)


def list_citations(deltas: list[Delta]) -> list[tuple[str, int, int]]:
    found = []
    for delta in deltas:
        if isinstance(delta, Citation):
            assert isinstance(delta.annotation, ContainerFileCitation)
            assert delta.annotation.container_id == "cntr_1"
            assert delta.annotation.file_id == f"cfile_{delta.annotation.filename}"
            found.append((delta.annotation.filename, delta.annotation.start_index, delta.annotation.end_index))
    return found


def rewrite(text: str, cuts: list[int], figures: int = 0) -> list[tuple[str, int, int]]:
    rewriter = make_rewriter(figures=figures)
    out = [*rewriter.feed([Text(part) for part in split_at(text, cuts)]), *rewriter.finish()]
    assert "".join(delta.text for delta in out if isinstance(delta, Text)) == text
    return list_citations(out)


@pytest.mark.parametrize(
    ("text", "citations"),
    [
        (f"See [it]({LINK}).", [("a.csv", 9, 32)]),
        (LINK, [("a.csv", 0, 23)]),
        (f"{LINK}. {LINK}", [("a.csv", 0, 23), ("a.csv", 25, 48)]),
        (f"ö😀{LINK}.gz", [("a.csv.gz", 2, 28)]),
        (f"{LINK}x {LINK}.bak /mnt/data/a.csv", []),
        ("![](sandbox:/mnt/data/my plot.png) (sandbox:/mnt/data/my%20plot.png)",
         [("my plot.png", 4, 33), ("my plot.png", 36, 67)]),
        ("sandbox:/mnt/data/unknown.csv", []),
    ],
)  # fmt: skip
@given(cuts=CUTS)
def test_a_link_is_cited_at_its_place_wherever_the_text_is_cut(
    text: str, citations: list[tuple[str, int, int]], cuts: list[int]
) -> None:
    assert rewrite(text, cuts) == citations


def test_figures_that_are_not_linked_are_cited_once_at_0() -> None:
    rewriter = make_rewriter(figures=2)
    first = rewriter.feed([Text("See sandbox:/mnt/data/cfile_1.png"), Break(), Text("More.")]) + rewriter.finish()
    assert list_citations(first) == [("cfile_1.png", 4, 33), ("cfile_0.png", 0, 0)]
    assert [type(delta) for delta in first] == [Text, Citation, Citation, Break, Text]


def test_figures_wait_for_an_answer() -> None:
    rewriter = make_rewriter(figures=1)
    deltas: list[Delta] = [Text("I draw."), CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0), ReasoningDelta("hm")]
    assert rewriter.feed(deltas) + rewriter.finish() == deltas
    assert list_citations([*rewriter.feed([Text("Drawn.")]), *rewriter.finish()]) == [("cfile_0.png", 0, 0)]


@pytest.mark.parametrize("lists_outputs", [False, True])
def test_calls_of_code_name_their_container(lists_outputs: bool) -> None:
    rewriter = ContainerFileRewriter(WrittenFiles(), "cntr_7", lists_outputs)
    code = CallStarted(0, "code_interpreter", "code_interpreter")
    assert rewriter.feed([code, CallStarted(1, "f"), CallDelta(0, "1")]) == [
        CallStarted(0, "code_interpreter", "code_interpreter", "cntr_7", None, lists_outputs),
        CallStarted(1, "f"),
        CallDelta(0, "1"),
    ]


@given(text=st.text(alphabet="[]cfile_ \n/mnt/datsbox:g", max_size=200))
def test_any_output_can_be_restored(text: str) -> None:
    WrittenFiles().restore(text)
    WrittenFiles().restore([InputText(text=text)])
