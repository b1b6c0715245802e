"""Small models, tied and untied: what is measured, when, and that a store is completed and not repeated."""

from dataclasses import replace

import pytest
import torch
from test_tiny_untied import SMALL

from repcap_utils import embeddings, isotropy, similarity, stores, tiny_untied, tying, unembedding
from repcap_utils.errors import RepcapError
from repcap_utils.tiny_untied import Recipe

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

BRIEF = replace(SMALL, steps=8, d_model=32)


@pytest.mark.parametrize(("steps", "times"), [(400, [0, 25, 50, 100, 200, 400]), (8, [0, 1, 2, 4, 8]), (1, [0, 1])])
def test_measured_from_the_start_to_the_end(steps, times):
    assert tying.measured_after(replace(SMALL, steps=steps)) == times


def as_trained(recipe: tiny_untied.Recipe) -> list[dict]:
    return [row for row in tying.run_rows(recipe) if row["centred"] == "no"]


def test_a_tied_model_has_one_matrix_and_its_twin_starts_from_the_same():
    tied, untied = (as_trained(replace(BRIEF, tied=which)) for which in (True, False))
    assert [row["step"] for row in tied] == tying.measured_after(BRIEF)
    assert {row["matrix"] for row in tied} == {tying.EMBEDDING}
    assert [row["matrix"] for row in untied] == [tying.EMBEDDING, tying.UNEMBEDDING] * len(tied)
    assert tied[0]["epsilon"] == untied[0]["epsilon"] == pytest.approx(similarity.random_floor(32), rel=0.05)
    assert tied[0]["loss"] is None
    assert tied[-1]["loss"] < tied[1]["loss"]


def test_the_rows_are_those_of_the_trained_matrix(tmp_path):
    model = embeddings.load(tiny_untied.train(tmp_path / "model", BRIEF))
    rows = [row for row in tying.run_rows(replace(BRIEF)) if row["step"] == BRIEF.steps]
    for name, weight in ((tying.EMBEDDING, model.weight), (tying.UNEMBEDDING, model.unembedding)):
        mine = [row for row in rows if row["matrix"] == name]
        profile = isotropy.epsilon_profile(weight, tying.COMPONENTS[:2])
        assert [(row["components"], row["epsilon"]) for row in mine[:3]] == [
            (step.components, step.moments.epsilon) for step in profile
        ]


def test_a_store_is_completed_and_not_repeated(tmp_path, monkeypatch):
    store = tmp_path / "tying.csv"
    recipes = [replace(BRIEF, seed=seed, steps=1) for seed in (0, 1)]
    tying.run(recipes[:1], store)
    trained = []
    rows_of = tying.run_rows
    monkeypatch.setattr(tying, "run_rows", lambda recipe: trained.append(recipe.seed) or rows_of(recipe))
    tying.run(recipes, store)
    assert trained == [1]
    assert stores.read(store, ("seed", "tied"))["seed"].tolist() == [0] * 16 + [1] * 16


def test_a_store_of_another_kind_is_refused(tmp_path):
    (tmp_path / "tying.csv").write_text("foo\n1\n")
    with pytest.raises(RepcapError, match="no column 'seed', 'tied'"):
        tying.run([BRIEF], tmp_path / "tying.csv")


def test_the_common_share_of_known_rows():
    assert tying.common_share(torch.ones(5, 3)) == pytest.approx(1)
    assert tying.common_share(torch.eye(8)) == pytest.approx(1 / 8)
    assert tying.common_share(torch.cat([torch.eye(4), -torch.eye(4)])) == 0
    with pytest.raises(RepcapError, match="nothing in common"):
        tying.common_share(torch.zeros(3, 2))


def test_the_gradient_of_an_unembedding_adds_up_to_zero_and_its_step_does_not(tmp_path):
    gradient, step = tying.first_step_rows(BRIEF)
    assert gradient["common_share"] < 1e-9
    assert step["common_share"] > 0.05
    assert gradient["unit_share"] > 0.1, "at unit length the rows of the gradient do not add up to zero"
    store = tmp_path / "steps.csv"
    tying.run_first_steps([BRIEF], store)
    kept = store.read_text()
    tying.run_first_steps([BRIEF], store)
    assert store.read_text() == kept
    assert stores.read(store, ("seed",)).common_share.tolist() == pytest.approx(
        [gradient["common_share"], step["common_share"]], abs=1e-8
    )


def test_a_tied_model_has_no_unembedding_of_its_own():
    with pytest.raises(RepcapError, match="give a recipe that is not tied"):
        tying.first_step_rows(replace(BRIEF, tied=True))


def test_the_committed_runs_are_complete_and_the_first_is_the_untied_model_of_notebook_01():
    table = stores.read(tying.STORE, ("seed", "tied"))
    first = Recipe()
    times = tying.measured_after(first)
    assert set(table["step"]) == set(times)
    assert len(table) == len(tying.SEEDS) * 3 * len(times) * (1 + len(tying.COMPONENTS))
    assert set(stores.read(tying.FIRST_STEP, ("seed",))["seed"]) == set(tying.SEEDS)
    last = table.query("seed == 0 and tied == 'no' and centred == 'no' and step == @first.steps").set_index("matrix")
    known = stores.read(unembedding.STATISTICS).query("name == @tiny_untied.NAME").set_index("cosines")
    for matrix in (tying.EMBEDDING, tying.UNEMBEDDING):
        assert last.epsilon[matrix] == pytest.approx(known.epsilon[matrix], abs=1e-6)
