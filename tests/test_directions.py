"""Shared directions of made models: sums that rebuild epsilon, groupings with a known answer, and what is committed."""

import numpy as np
import pandas as pd
import pytest
import torch

from repcap_utils import directions, embeddings, models, similarity, spectrum, stores, survey
from repcap_utils.errors import RepcapError

# bytes in the characters of byte-level BPE: the fifth is a Russian word, the last the lone byte 0xC3
TOKENS = ["<bos>", "[unused7]", "Ġthe", "the", "ĠÐ¼Ð¸ÑĢ", "42", "ĠĠ", "!!", "Ã"]


@pytest.fixture
def embedding():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(400, 24, generator=generator) * torch.linspace(2.0, 0.2, 24) + 0.5
    weight[5] = 0.0
    strings = [f"Ġword{i}" if i % 2 else f"word{i}" for i in range(400)]
    return embeddings.Embedding(weight, strings, None, True, "small", 24, "float32", {"file": "f"})


def test_bands_rebuild_epsilon(embedding):
    rows = pd.DataFrame(directions.spectrum_rows(embedding))
    assert rows["first"].tolist() == [1, *(rows["last"] + 1)[:-1]]
    assert rows["last"].iloc[-1] == 24
    assert rows.eigenvalues.sum() == pytest.approx(1.0)
    found = spectrum.Moments(rows.along_mean.sum(), rows.squares.sum(), rows.rows[0])
    assert found.epsilon == pytest.approx(similarity.cosine_moments(embedding.weight).epsilon, abs=1e-12)


def test_removal_starts_from_the_matrix_as_stored(embedding):
    rows = directions.removal_rows(embedding)
    assert [row["components"] for row in rows] == [0, *(count for count in directions.COUNTS if count < 24)]
    assert rows[0]["epsilon"] == similarity.cosine_moments(embedding.weight).epsilon


def test_normal_rows_agree_with_their_draws(embedding, monkeypatch):
    monkeypatch.setattr(directions, "DRAWS", 2)
    rows = pd.DataFrame(directions.gaussian_rows(embedding)).set_index("kept")
    assert rows.loc[directions.DRAWN, "epsilon"].mean() == pytest.approx(rows.loc[directions.BOTH, "epsilon"], rel=0.02)
    assert rows.loc[directions.COVARIANCE_ALONE, "mean"] == pytest.approx(0.0, abs=1e-12)
    assert rows.loc[directions.MEAN_ALONE, "std"] < rows.loc[directions.BOTH, "std"]


def test_raw_moments_leave_zero_rows_out(embedding):
    kept = embedding.weight[embedding.weight.norm(dim=1) > 0].double().numpy()
    mean, covariance = directions.raw_moments(embedding.weight)
    np.testing.assert_allclose(mean, kept.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(covariance, np.cov(kept.T, ddof=0), atol=1e-12)


def test_projections_are_those_of_a_singular_value_decomposition(embedding):
    rows = similarity.unit_rows(embedding.weight)
    unit = torch.cat(list(rows.blocks())).numpy()
    along = directions.projections(rows)
    mean = unit.mean(axis=0)
    np.testing.assert_allclose(along[directions.MEAN], unit @ mean / np.linalg.norm(mean), atol=1e-12)
    singular = np.linalg.svd(unit - mean, compute_uv=False)
    np.testing.assert_allclose(along.iloc[:, 1:].var(ddof=0), singular[: directions.TOP] ** 2 / len(unit), atol=1e-12)


def test_token_facts(monkeypatch):
    monkeypatch.setattr(directions, "FEWEST", 1)
    facts = directions.token_facts(TOKENS, np.arange(1.0, 10.0))
    assert facts["unused or special"].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert facts["leading space"].tolist() == [0, 0, 1, 0, 1, 0, 1, 0, 0]
    assert facts["lone byte"].tolist() == [0] * 8 + [1]
    assert facts["length"].tolist() == [5, 9, 4, 3, 4, 2, 2, 2, 1]
    script = facts["script"]
    assert script[2] == script[3] != script[4]
    assert len({script[2], script[4], script[5], script[7]}) == 4


def test_rare_scripts_are_one_group():
    facts = directions.token_facts(["Ġa"] * 120 + ["ĠÐ¶", "ĠÎ±"], np.ones(122))
    assert facts["script"].nunique() == 2
    assert facts["row norm"].nunique() == 1


@pytest.mark.parametrize(
    ("values", "groups", "expected"),
    [([1.0, 1.0, 3.0, 3.0], [0, 0, 1, 1], 1.0), ([1.0, 3.0, 1.0, 3.0], [0, 0, 1, 1], 0.0), ([2.0, 2.0], [0, 1], 0.0)],
)
def test_explained_is_the_share_between_groups(values, groups, expected):
    assert directions.explained(np.array(values), np.array(groups)) == pytest.approx(expected, abs=1e-12)


def test_additive_effects_explain_what_neither_grouping_does_alone():
    groups = pd.DataFrame({"a": [0, 0, 1, 1] * 50, "b": [0, 1, 0, 1] * 50})
    values = np.column_stack([groups.a + 2.0 * groups.b, groups.a * 1.0, np.random.default_rng(0).normal(size=200)])
    found = directions.explained_together(values, groups)
    assert found[:2] == pytest.approx([1.0, 1.0])
    assert found[2] < 0.1
    assert directions.explained(values[:, 0], groups.a.to_numpy()) == pytest.approx(0.2)


def test_a_model_enters_all_tables_and_is_measured_once(embedding, tmp_path, monkeypatch):
    for store in ("SPECTRUM", "REMOVAL", "FACTS", "GAUSSIAN"):
        monkeypatch.setattr(directions, store, tmp_path / f"{store}.csv")
    monkeypatch.setattr(directions, "DRAWS", 1)
    directions.measure(embedding)
    assert all(set(stores.read(path)["name"]) == {"small"} for path in tmp_path.glob("*.csv"))
    assert len(list(tmp_path.glob("*.csv"))) == 4
    monkeypatch.setattr(models, "registry", lambda: {"small": None})
    monkeypatch.setattr(directions, "measure", lambda embedding: pytest.fail("a stored model is measured again"))
    directions.main()


def test_an_unknown_model_is_one_line():
    with pytest.raises(RepcapError, match="no-such-model"):
        directions.main(["no-such-model"])


def test_the_committed_spectra_give_the_committed_epsilons():
    bands, measured = stores.read(directions.SPECTRUM), survey.read().set_index("name")
    sums = bands.groupby("name").agg({"along_mean": "sum", "squares": "sum", "rows": "first"})
    assert set(models.registry()) == set(sums.index)
    for name, row in sums.iterrows():
        found = spectrum.Moments(row.along_mean, row.squares, row.rows)
        assert found.mean == pytest.approx(measured["mean"][name], abs=1e-6)
        assert found.epsilon == pytest.approx(measured.epsilon[name], abs=1e-6)


def test_the_committed_removal_agrees_with_the_survey():
    steps = survey.read(survey.ISOTROPY).merge(stores.read(directions.REMOVAL), on=["name", "centred", "components"])
    assert len(steps) == len(survey.read(survey.ISOTROPY))
    np.testing.assert_allclose(steps.epsilon_x, steps.epsilon_y, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma-3-270m", [0.4153, 0.2034, 0.1436, 0.1080, 0.0967]),
        ("smollm2-135m", [0.7287, 0.2058, 0.1086, 0.0919, 0.0899]),
    ],
)
def test_the_committed_removal_has_the_values_of_an_independent_measurement(name, expected):
    steps = stores.read(directions.REMOVAL)
    steps = steps[(steps["name"] == name) & steps.components.isin([0, 1, 4, 16])]
    np.testing.assert_allclose(steps.epsilon, expected, atol=6e-5)
