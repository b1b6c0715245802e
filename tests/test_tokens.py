import warnings

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repcap_utils import tokens

BYTE_LEVEL = ["the", "Ġthe", "Ċ", "ĠĠ", "çĮ«", "è", "aè", "<|endoftext|>", "Ġ<tag with space>"]
SENTENCEPIECE = ["the", "▁the", "▁▁", "<0xE8>", "猫", "<bos>", "\n", "a\u200bb", "\u0301"]
WORDPIECE = ["[PAD]", "[unused1]", "the", "##the", "##", "!", "<row 4>"]


@pytest.mark.parametrize(
    ("strings", "scheme"),
    [
        (BYTE_LEVEL, "byte-level"),
        (SENTENCEPIECE, "sentencepiece"),
        (WORDPIECE, "wordpiece"),
        (["a", "b"], "plain"),
        ([], "plain"),
        (["▁a", "▁b", "Ġ"], "sentencepiece"),
    ],
)
def test_the_scheme_is_recognised_by_its_marker(strings, scheme):
    assert tokens.scheme(strings) == scheme


@pytest.mark.parametrize(
    ("strings", "expected"),
    [
        (BYTE_LEVEL, ["the", "␣the", "\\n", "␣␣", "猫", "<0xE8>", "a<0xE8>", "<|endoftext|>", "Ġ<tag␣with␣space>"]),
        (SENTENCEPIECE, ["the", "␣the", "␣␣", "<0xE8>", "猫", "<bos>", "\\n", "a<U+200B>b", "◌\u0301"]),
        (WORDPIECE, ["[PAD]", "[unused1]", "␣the", "the", "␣##", "␣!", "<row␣4>"]),
        (["a", "", "\ud800"], ["a", "<empty>", "<U+D800>"]),
    ],
)
def test_labels_can_be_read(strings, expected):
    assert tokens.labels(strings) == expected


def test_every_byte_of_byte_level_bpe_is_decoded():
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    decode = tokenizers.decoders.ByteLevel().decode
    assert len(alphabet) == 256
    for character, text in zip(alphabet, tokens.texts(alphabet), strict=True):
        assert text == (decode([character]) if decode([character]) != "\ufffd" else f"<0x{_byte(character):02X}>")


def _byte(character: str) -> int:
    """The byte of a character, found from a string whose UTF-8 form holds it."""
    import tokenizers

    for code in (*range(0x80, 0x800), *range(0x800, 0xD800, 64), *range(0x10000, 0x110000, 4096)):
        stored = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(code))
        for byte, mark in zip(chr(code).encode(), "".join(part for part, _ in stored), strict=True):
            if mark == character:
                return byte
    # 0xC0, 0xC1 and 0xF5 to 0xFF occur in no UTF-8 text.
    return tokens._byte_of()[character]


def test_tokens_that_read_the_same_are_numbered():
    assert tokens.labels(["a", "a", "b", "a"]) == ["a", "a#1", "b", "a#3"]
    assert tokens.labels(["a", "a#2", "a"]) == ["a", "a#2", "a#2#2"]
    assert tokens.labels(["Ġa", " a"]) == ["␣a", "␣a#1"]


@given(st.lists(st.text(alphabet="aĠ▁# <>è猫\n\u0301", max_size=4), max_size=12))
def test_labels_are_unique_and_have_no_spaces(strings):
    found = tokens.labels(strings)
    assert len(found) == len(strings) == len(set(found))
    assert not any(character.isspace() for label in found for character in label)


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("␣the", "␣the"),
        ("猫x女王", "<U+732B>x<U+5973 738B>"),
        ("$a$", r"\$a\$"),
        ("école", "école"),
        ("<0xE8>", "<0xE8>"),
    ],
)
def test_what_the_font_lacks_is_shown_by_its_code_point(label, shown):
    assert tokens.drawable(label) == shown


def test_labels_that_differ_are_drawn_differently():
    stored = [
        "▁王",
        "▁<U+738B>",
        "<U+738B>",
        "王",
        "<U+003C>U+738B>",
        "<",
        "\u200b",
        "<U+110000>",
        "王女",
        "<U+738B 5973>",
    ]
    drawn = [tokens.drawable(label) for label in tokens.labels(stored)]
    assert len(set(drawn)) == len(stored)
    assert drawn[2:4] == ["<U+003C>U+738B>", "<U+738B>"]
    assert drawn[6] == "<U+200B>"


def test_labels_draw_without_a_warning_and_as_they_are():
    strings = [*SENTENCEPIECE, "$x$", "\\$", "한국", "🙂", "עברית", "ไทย", "\U000e0041", "\ufdd0", "a\u0301"]
    drawn = [tokens.drawable(label) for label in tokens.labels(strings)]
    figure, axes = plt.subplots()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place, label in enumerate(drawn):
            axes.text(0, place, label, fontfamily="DejaVu Sans")
        figure.canvas.draw()
    plt.close(figure)


def test_a_drawing_without_the_care_does_warn():
    """The test above can fail: the same characters as they are give a warning."""
    figure, axes = plt.subplots()
    axes.text(0, 0, "猫", fontfamily="DejaVu Sans")
    with pytest.warns(UserWarning, match="missing from"):
        figure.canvas.draw()
    plt.close(figure)
