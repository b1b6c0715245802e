import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from repcap_utils import embeddings, isotropy, model_report
from repcap_utils.errors import RepcapError


@pytest.fixture
def embedding(tmp_path):
    """300 x 24, off the origin, with a zero row and a repeated one."""
    weight = torch.randn(300, 24, generator=torch.Generator().manual_seed(2)) + 0.5
    weight[5], weight[8] = 0.0, weight[2]
    save_file({"model.embed_tokens.weight": weight}, tmp_path / "model.safetensors")
    return embeddings.load(tmp_path)


@pytest.mark.parametrize("components", [model_report.MEAN_ROW, model_report.PROFILE, (2,)])
def test_common_directions_are_removed_as_asked_for(embedding, components):
    found = model_report.facts(embedding, components=components)["without_common_directions"]
    wanted = isotropy.epsilon_profile(embedding.weight, components)[1:]
    assert [step["components"] for step in found] == list(components)
    assert [step["epsilon"] for step in found] == [step.moments.epsilon for step in wanted]


def test_components_that_the_rows_do_not_have_are_left_out(tmp_path):
    save_file(
        {"wte.weight": torch.randn(6, 24, generator=torch.Generator().manual_seed(0))}, tmp_path / "m.safetensors"
    )
    found = model_report.facts(embeddings.load(tmp_path, tensor="wte.weight"), components=model_report.PROFILE)
    assert [step["components"] for step in found["without_common_directions"]] == [0, 1, 4]


def test_facts_are_json_and_lines_are_text(embedding):
    found = model_report.facts(embedding, note="not asked for")
    assert json.loads(json.dumps(found, allow_nan=False))["tokenizer"] == "not asked for"
    text = list(model_report.lines(found))
    assert text[0] == embedding.name
    assert all(line and "\n" not in line for line in text)
    headings = [line for line in text if not line.startswith(" ")]
    assert len(headings) == 6


@pytest.mark.parametrize(
    ("note", "vocab_size", "line", "count", "told_by"),
    [
        (None, None, "beyond the tokenizer     unknown (no tokenizer)", None, None),
        (None, 300, "beyond the tokenizer     unknown (no tokenizer)", None, None),
        ("not read from the hub; --tokens does", 300, "unknown (tokenizer not read; --tokens)", None, None),
        ("vocab.txt: holds no tokens", None, "unknown (tokenizer not read)", None, None),
        (None, 290, "beyond the configuration's vocab_size  10 (290,", 10, "configuration"),
    ],
)
def test_padding_is_not_told_where_nobody_knows_it(embedding, note, vocab_size, line, count, told_by):
    found = model_report.facts(replace(embedding, vocab_size=vocab_size), note=note)
    assert found["padding_told_by"] == told_by
    assert (found["rows"]["padded"] or {}).get("count") == count
    assert any(line in text for text in model_report.lines(found))


def test_padding_is_told_by_the_tokenizer_first(embedding):
    tokens = [f"t{row}" if row < 295 else f"<row {row}>" for row in range(300)]
    found = model_report.facts(replace(embedding, tokens=tokens, vocab_size=290))
    assert (found["padding_told_by"], found["rows"]["padded"]["count"]) == ("tokenizer", 5)


@pytest.mark.parametrize("weight", [torch.eye(4), torch.eye(4) - 0.25, torch.tensor([[1.0, 0.0], [-1.0, 0.0]])])
def test_an_epsilon_that_is_not_positive_is_reported(tmp_path, weight):
    save_file({"model.embed_tokens.weight": weight}, tmp_path / "model.safetensors")
    found = model_report.facts(embeddings.load(tmp_path))
    assert found["epsilon"] <= 0
    assert (found["capacity"], found["bracket"], found["nearest_published"]) == (None, None, [])
    assert found["flags"][0].startswith("epsilon <= 0")
    assert set(found["log10_by_form"].values()) == {None}
    text = list(model_report.lines(found))
    assert sum("epsilon <= 0" in line for line in text) == 1


def test_notes_are_lines_of_their_own(embedding):
    text = list(model_report.lines(model_report.facts(replace(embedding, notes=("one doubt", "another")))))
    assert [line for line in text if "one doubt" in line or "another" in line] == text[5:7]


def test_a_tied_model_has_no_unembedding(embedding):
    with pytest.raises(RepcapError, match="no unembedding of its own"):
        model_report.facts(embedding, unembedding=True)


def test_the_nearest_published_models_are_near():
    llama = model_report.nearest_published(4096, 0.0645)
    assert len(llama) == 3
    assert (llama[0]["model"], llama[0]["epsilon"]) == ("Llama 2 7B", 0.0645)
    assert llama[0]["capacity"] == pytest.approx(3.99e7, rel=0.01)


def test_a_bracket_that_closes_is_an_exact_number():
    facts = model_report.bounds_facts(4096, 1 / 64)
    assert (facts["lower"]["lines"], facts["upper"]["lines"]) == (8392704, 8392704)
    assert "  exactly        8,392,704  Kerdock (m = 12), coherence 0.015625" in model_report.bounds_lines(facts)


@pytest.mark.parametrize(
    ("d", "epsilon", "line"),
    [
        (4096, 0.015624, "cannot exceed 8,390,656 orthoplex, degree 1"),
        (4096, 0.01, "random vectors, median fewer than 2: even of a single pair the median |cos| is above epsilon"),
        (4096, 0.0645, "greedy 10^4.44"),
        (64, 1e-170, "cannot exceed 64 Levenshtein, degree 1"),
    ],
)
def test_bounds_in_words(d, epsilon, line):
    words = [" ".join(text.split()) for text in model_report.bounds_lines(model_report.bounds_facts(d, epsilon))]
    assert line in words


@pytest.mark.parametrize(("d", "epsilon"), [(4096, 0.999999), (10**8, 0.9), (3, 1 - 1e-15), (64, 1e-170)])
def test_extreme_arguments_have_facts(d, epsilon):
    """Where Levenshtein's bound has too high a degree, the bracket is that of another bound."""
    bracket = model_report.capacity_facts(d, epsilon)["bracket"]
    assert bracket["log10_lower"] <= bracket["log10_upper"]
    for facts in (model_report.capacity_facts(d, epsilon), model_report.bounds_facts(d, epsilon)):
        json.dumps(facts, allow_nan=False)


def test_rows_that_hardly_differ_have_a_report(tmp_path):
    weight = torch.ones(40, 24) + 1e-4 * torch.randn(40, 24, generator=torch.Generator().manual_seed(0))
    save_file({"wte.weight": weight}, tmp_path / "m.safetensors")
    found = model_report.facts(embeddings.load(tmp_path, tensor="wte.weight"))
    assert found["epsilon"] > 0.999
    assert any(line.startswith("  cannot exceed") for line in model_report.lines(found))
