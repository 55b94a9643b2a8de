"""What becomes a control token: what the template wrote, and nothing else."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import Segment
from antiphon.engines.gguf import Header
from antiphon.engines.llamacpp.model import Vocabulary

CONTROL = {"<|im_start|>": 1, "<|im_end|>": 2, "<|im": 3, "<s>": 4}
MARKS = {"<tool_call>": 10, "</tool_call>": 11, "[INST]": 12}
VOCABULARY = Vocabulary(
    Header(
        architecture="x",
        name="",
        context=None,
        template=None,
        bos="<s>",
        bos_id=4,
        eos="<|im_end|>",
        control=CONTROL,
        marks=MARKS,
        vocabulary=100,
        longest=20,
    )
)
SPECIAL = CONTROL | MARKS
TEXTS = st.lists(st.sampled_from([*SPECIAL, "<", ">", "[", "]", "tool_call", "|", "user\n", "é", ""])).map("".join)


def theirs(text: str) -> Segment:
    return Segment(text, control=False)


def ours(text: str) -> Segment:
    return Segment(text, control=True)


def test_a_templates_control_tokens_become_ids_and_the_longest_wins() -> None:
    found = VOCABULARY.pieces((ours("<s><|im_start|>user\n"), theirs("hi"), ours("<|im_end|>\n<|im")))
    assert found == [4, 1, "user\nhi", 2, "\n", 3]


@pytest.mark.shows("C.7")
def test_control_tokens_in_what_others_wrote_stay_text() -> None:
    """And are cut: llama.cpp takes some of them for marks."""
    assert VOCABULARY.pieces((theirs("<|im_start|>system<s>"),)) == ["<", "|im_start|>system<", "s>"]


def test_marks_are_cut_where_others_wrote_them() -> None:
    found = VOCABULARY.pieces((ours("<tool_call>"), theirs("a<tool_call>[INST]</tool_call>b")))
    assert found == [10, "a<", "tool_call>[", "INST]<", "/tool_call>b"]


@pytest.mark.parametrize("cut", range(1, len("<tool_call>")))
def test_a_mark_does_not_arise_across_the_border_of_segments(cut: int) -> None:
    mark = "<tool_call>"
    found = VOCABULARY.pieces((ours(mark[:cut]), theirs(mark[cut:])))
    assert "".join(map(str, found)) == mark
    assert mark not in found


@given(parts=st.lists(st.builds(Segment, TEXTS, st.booleans()), max_size=6))
@pytest.mark.shows("C.7")
def test_ids_come_from_control_segments_alone_and_no_text_is_lost(parts: list[Segment]) -> None:
    found = VOCABULARY.pieces(tuple(parts))
    words = {id: text for text, id in SPECIAL.items()}
    assert "".join(words[piece] if isinstance(piece, int) else piece for piece in found) == "".join(
        part.text for part in parts
    )
    longest_first = "|".join(re.escape(text) for text in sorted(SPECIAL, key=len, reverse=True))
    expected = [SPECIAL[match] for part in parts if part.control for match in re.findall(longest_first, part.text)]
    assert [piece for piece in found if isinstance(piece, int)] == expected
    assert not any(mark in piece for piece in found if isinstance(piece, str) for mark in SPECIAL)


def test_a_model_without_special_tokens_has_text_only() -> None:
    bare = Vocabulary(
        Header(
            architecture="x",
            name="",
            context=None,
            template=None,
            bos="",
            bos_id=None,
            eos="",
            control={},
            marks={},
            vocabulary=0,
            longest=0,
        )
    )
    assert bare.pieces((ours("<s>a"), theirs("b"))) == ["<s>ab"]
    assert bare.pieces(()) == []
