import json
import sys
from dataclasses import replace

import pytest
import torch

from repcap_utils import embeddings, stores, tiny_untied, unembedding
from repcap_utils.errors import RepcapError

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

SMALL = tiny_untied.Recipe(
    rows=300, d_model=16, layers=1, heads=2, hidden=32, steps=30, batch=4, context=16, rate=1e-2, text_bytes=60_000
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return tiny_untied.train(tmp_path_factory.mktemp("models") / "small", SMALL)


def test_the_checkpoint_is_read_as_an_untied_model(small):
    model = embeddings.load(small)
    assert model.weight.shape == model.unembedding.shape == (300, 16)
    assert model.tied is False
    assert not torch.equal(model.weight, model.unembedding)
    assert len(model.tokens) == len(set(model.tokens)) == 300
    assert any(token.startswith("Ġ") for token in model.tokens)
    assert [row["name"] for row in unembedding.statistics_rows(model)] == ["small"] * 4


def test_training_lowers_the_loss_and_the_recipe_is_kept(small):
    facts = json.loads((small / tiny_untied.RECIPE).read_text())
    assert facts["last_loss"] < facts["first_loss"] - 0.2
    assert {name: facts[name] for name in vars(SMALL)} == vars(SMALL)
    assert len(facts["text_sha256"]) == 64


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(small, tmp_path):
    again = embeddings.load(tiny_untied.train(tmp_path / "again", SMALL))
    other = embeddings.load(tiny_untied.train(tmp_path / "other", tiny_untied.Recipe(**{**vars(SMALL), "seed": 1})))
    first = embeddings.load(small)
    assert torch.equal(again.weight, first.weight)
    assert torch.equal(again.unembedding, first.unembedding)
    assert again.tokens == first.tokens
    assert not torch.equal(other.weight, first.weight)


def test_torchs_own_state_is_left_alone(tmp_path):
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    tiny_untied.train(tmp_path / "model", tiny_untied.Recipe(**{**vars(SMALL), "steps": 1}))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_earlier_model_is_replaced_whole(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "stale.txt").write_text("old")
    lines = []
    tiny_untied.train(folder, tiny_untied.Recipe(**{**vars(SMALL), "steps": 1}), lines.append)
    assert not (folder / "stale.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert lines and lines[0].startswith("step 0: loss ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 50_000}, "the text gives .* tokens, not 50000; raise text_bytes or lower rows"),
        ({"context": 100_000}, "too few for a context of 100000; raise text_bytes"),
        ({"text_bytes": 10}, "no source text of at most 10 bytes"),
    ],
)
def test_too_little_text_is_refused(tmp_path, change, message):
    with pytest.raises(RepcapError, match=message):
        tiny_untied.train(tmp_path / "model", tiny_untied.Recipe(**{**vars(SMALL), **change}))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(RepcapError, match="transformers is not installed; run `pip install"):
        tiny_untied.train(tmp_path / "model", SMALL)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RepcapError, match=r"cannot write .*file/model"):
        tiny_untied.train(tmp_path / "file" / "model", tiny_untied.Recipe(**{**vars(SMALL), "steps": 1}))


def test_the_command_trains_and_stores(tmp_path, monkeypatch):
    monkeypatch.setenv("REPCAP_MODELS", str(tmp_path / "models"))
    for module, name in ((unembedding, "STATISTICS"), (unembedding, "HISTOGRAMS"), (tiny_untied, "FACTS")):
        monkeypatch.setattr(module, name, tmp_path / getattr(module, name).name)
    monkeypatch.setattr(tiny_untied, "Recipe", lambda: SMALL)
    tiny_untied.main()
    assert set(stores.read(unembedding.STATISTICS)["name"]) == {tiny_untied.NAME, tiny_untied.CONTROL}
    facts = stores.read(tiny_untied.FACTS).set_index("quantity")["value"]
    assert int(facts["rows"]) == 300
    assert (tmp_path / "models" / tiny_untied.NAME / "model.safetensors").is_file()


def test_the_committed_facts_are_those_of_the_default_recipe():
    facts = stores.read(tiny_untied.FACTS).set_index("quantity")["value"]
    for name, value in vars(tiny_untied.Recipe()).items():
        assert float(facts[name]) == value
    assert 2e6 <= float(facts["parameters"]) <= 5e6
    assert float(facts["last_loss"]) < float(facts["first_loss"])


def test_the_control_is_a_model_that_chance_made():
    state = torch.random.get_rng_state()
    control = tiny_untied.untrained(SMALL)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(control.weight, tiny_untied.untrained(SMALL).weight)
    table = {row["cosines"]: row for row in unembedding.statistics_rows(control)}
    for which in (unembedding.SAME_TOKEN, unembedding.OTHER_TOKENS):
        assert abs(table[which]["mean"]) < 4 * table[which]["std"] / table[which]["count"] ** 0.5 + 1e-3


def test_twins_differ_in_tying_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_untied, "TYING", tmp_path / "tiny_tying.csv")
    monkeypatch.setattr(tiny_untied, "Recipe", lambda seed: replace(SMALL, seed=seed))
    monkeypatch.setattr(tiny_untied, "TYING_COMPONENTS", (0, 1))
    state = torch.random.get_rng_state()
    tiny_untied.measure_tying([3])
    assert torch.equal(torch.random.get_rng_state(), state)
    table = stores.read(tiny_untied.TYING, tiny_untied.TYING_KEY)
    stored = table[table.centred == "no"].set_index(["name", "matrix", "step"]).epsilon
    assert stored["tied", "embedding", 0] == stored["untied", "embedding", 0]
    assert stored["tied", "embedding", 30] != stored["untied", "embedding", 30]
    assert set(table[table["name"] == "tied"].matrix) == {"embedding"}
    assert len(table) == 3 * 2 * 3


def test_a_stored_seed_is_not_trained_again(monkeypatch):
    monkeypatch.setattr(tiny_untied, "tying_rows", lambda *_: pytest.fail("a stored seed is trained again"))
    tiny_untied.measure_tying()
    table = stores.read(tiny_untied.TYING, tiny_untied.TYING_KEY)
    assert set(table["seed"]) == set(tiny_untied.SEEDS)


def test_the_committed_untied_model_is_that_of_the_first_seed():
    table = stores.read(tiny_untied.TYING, tiny_untied.TYING_KEY)
    first = table[(table["name"] == "untied") & (table["seed"] == 0) & (table["centred"] == "no") & (table["step"] > 0)]
    known = stores.read(unembedding.STATISTICS)
    known = known[known["name"] == tiny_untied.NAME].set_index("cosines").epsilon
    for row in first.itertuples():
        assert row.epsilon == pytest.approx(known[row.matrix], abs=1e-6)
