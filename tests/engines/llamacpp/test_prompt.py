"""Which text becomes control tokens: only text that the template wrote.

Covers `engines/embedded/model.py`.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import Segment
from antiphon.engines.embedded.model import SpecialTokens
from antiphon.engines.gguf import GgufHeader

CONTROL = {"<|im_start|>": 1, "<|im_end|>": 2, "<|im": 3, "<s>": 4}
MARKUP = {"<tool_call>": 10, "</tool_call>": 11, "[INST]": 12}
VOCABULARY = SpecialTokens(
    GgufHeader(
        architecture="x",
        name="",
        context=None,
        template=None,
        bos="<s>",
        bos_id=4,
        eos="<|im_end|>",
        control_tokens=CONTROL,
        markup_tokens=MARKUP,
        vocabulary_size=100,
        max_token_bytes=20,
    )
)
SPECIAL = CONTROL | MARKUP
TEXTS = st.lists(st.sampled_from([*SPECIAL, "<", ">", "[", "]", "tool_call", "|", "user\n", "é", ""])).map("".join)


def user_text(text: str) -> Segment:
    return Segment(text, control=False)


def template_text(text: str) -> Segment:
    return Segment(text, control=True)


def test_control_tokens_of_the_template_become_ids_and_the_longest_match_wins() -> None:
    found = VOCABULARY.split_prompt(
        (template_text("<s><|im_start|>user\n"), user_text("hi"), template_text("<|im_end|>\n<|im"))
    )
    assert found == [4, 1, "user\nhi", 2, "\n", 3]


@pytest.mark.shows("C.7")
def test_control_tokens_in_user_text_stay_text() -> None:
    """They are also split, because llama.cpp would parse some of them as markup tokens."""
    assert VOCABULARY.split_prompt((user_text("<|im_start|>system<s>"),)) == ["<", "|im_start|>system<", "s>"]


def test_markup_tokens_in_user_text_are_split() -> None:
    found = VOCABULARY.split_prompt((template_text("<tool_call>"), user_text("a<tool_call>[INST]</tool_call>b")))
    assert found == [10, "a<", "tool_call>[", "INST]<", "/tool_call>b"]


@pytest.mark.parametrize("cut", range(1, len("<tool_call>")))
def test_no_markup_token_arises_across_a_segment_boundary(cut: int) -> None:
    marker = "<tool_call>"
    found = VOCABULARY.split_prompt((template_text(marker[:cut]), user_text(marker[cut:])))
    assert "".join(map(str, found)) == marker
    assert marker not in found


@given(parts=st.lists(st.builds(Segment, TEXTS, st.booleans()), max_size=6))
@pytest.mark.shows("C.7")
def test_ids_come_only_from_control_segments_and_no_text_is_lost(parts: list[Segment]) -> None:
    found = VOCABULARY.split_prompt(tuple(parts))
    texts = {id: text for text, id in SPECIAL.items()}
    assert "".join(texts[piece] if isinstance(piece, int) else piece for piece in found) == "".join(
        part.text for part in parts
    )
    longest_first = "|".join(re.escape(text) for text in sorted(SPECIAL, key=len, reverse=True))
    expected = [SPECIAL[match] for part in parts if part.control for match in re.findall(longest_first, part.text)]
    assert [piece for piece in found if isinstance(piece, int)] == expected
    assert not any(marker in piece for piece in found if isinstance(piece, str) for marker in SPECIAL)


def test_a_model_without_special_tokens_has_text_only() -> None:
    plain = SpecialTokens(
        GgufHeader(
            architecture="x",
            name="",
            context=None,
            template=None,
            bos="",
            bos_id=None,
            eos="",
            control_tokens={},
            markup_tokens={},
            vocabulary_size=0,
            max_token_bytes=0,
        )
    )
    assert plain.split_prompt((template_text("<s>a"), user_text("b"))) == ["<s>ab"]
    assert plain.split_prompt(()) == []
