"""Facts of tokens, shares of variance, surrogates, and the stores of what separates large from small epsilons."""

import numpy as np
import pytest
import torch

from repcap_utils import common_directions, embeddings, isotropy, models, similarity, stores, survey
from repcap_utils.errors import RepcapError


def made(rows: int = 600, d: int = 24, *, tokens: bool = True) -> embeddings.Embedding:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    weight[:, 0] += torch.linspace(0, 20, rows)
    strings = [f"{'Ġ' if row % 2 else ''}t{row}" for row in range(rows)] if tokens else None
    return embeddings.Embedding(weight, strings, None, None, "made", d, "float64", {"source": "memory"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" the", "Latin"),
        ("привет", "Cyrillic"),
        ("中", "Cjk"),
        ("<0xE8>", "byte"),
        ("<unused7>", "special"),
        ("[CLS]", "special"),
        ("  ", "space"),
        (" 12", "number"),
        ("+=", "sign"),
        ("<", "sign"),
        ("\ue000", "sign"),
    ],
)
def test_kinds_of_text(text, expected):
    assert common_directions.kind(text) == expected


def test_explained_variance_of_known_groups():
    groups = np.repeat(["a", "b"], 500)
    noise = np.tile([-1.0, 1.0], 500)
    values = np.where(groups == "a", 0.0, 2.0)
    assert common_directions.explained(values, groups) == pytest.approx(1)
    assert common_directions.explained(noise, groups) == pytest.approx(0)
    assert common_directions.explained(values + noise, groups) == pytest.approx(0.5)
    assert common_directions.explained([0, np.nan, 1], ["a", "b", "c"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("values", "groups", "message"),
    [([1.0, 2.0], ["a"], "one group for each value"), ([1.0, 1.0], ["a", "b"], "no variance to explain")],
)
def test_nothing_to_explain_is_refused(values, groups, message):
    with pytest.raises(RepcapError, match=message):
        common_directions.explained(values, groups)


def test_a_direction_made_of_the_row_number_is_found():
    rows = {(row["direction"], row["fact"]): row["share"] for row in common_directions.fact_rows(made())}
    assert rows["mean row", "row number"] > 0.9
    assert rows["1", "row number"] > 0.9
    assert rows["2", "row number"] < 0.2
    assert rows["1", "leading space"] < 0.05
    assert {fact for _, fact in rows} == {"length of row", "row number", "characters", "leading space", "kind of text"}
    assert {row["fact"] for row in common_directions.fact_rows(made(tokens=False))} == {"length of row"}


def test_a_surrogate_of_normal_rows_has_their_epsilon():
    generator = np.random.default_rng(0)
    stretched = np.linspace(0.2, 2, 40)
    rows = generator.standard_normal((20_000, 40)) * stretched + 1
    epsilon = similarity.cosine_moments(rows).epsilon
    drawn = common_directions.surrogate_epsilon(rows.mean(axis=0), np.cov(rows.T), 20_000, 1)
    assert drawn == pytest.approx(epsilon, abs=0.01)
    assert drawn == common_directions.surrogate_epsilon(rows.mean(axis=0), np.cov(rows.T), 20_000, 1)
    assert drawn != common_directions.surrogate_epsilon(rows.mean(axis=0), np.cov(rows.T), 20_000, 2)


def test_mean_and_covariance_of_both_kinds_of_rows():
    weight = made().weight
    rows = similarity.unit_rows(weight)
    for unit in (False, True):
        plain = weight / torch.linalg.vector_norm(weight, dim=1, keepdim=True) if unit else weight
        mean, covariance = common_directions._mean_and_covariance(rows, unit)
        assert mean == pytest.approx(plain.mean(dim=0).numpy(), abs=1e-12)
        assert covariance == pytest.approx(np.cov(plain.T.numpy(), bias=True), abs=1e-12)


def test_the_stores_hold_what_the_functions_say(tmp_path, monkeypatch):
    stored = tuple(tmp_path / store.name for store in common_directions.STORES)
    monkeypatch.setattr(common_directions, "STORES", stored)
    embedding = made()
    common_directions.measure(embedding)
    common_directions.measure(embedding)
    spectrum, removal, facts, surrogates = (stores.read(store) for store in stored)
    assert spectrum["rank"].tolist() == list(range(25))
    assert removal.components.tolist() == [0, *(count for count in common_directions.REMOVED if count < 24)]
    assert len(facts) == 5 * 5
    assert len(surrogates) == 2 * common_directions.DRAWS
    assert removal.epsilon[0] == pytest.approx(similarity.cosine_moments(embedding.weight).epsilon, abs=1e-8)


@pytest.mark.parametrize("name", models.registry())
def test_the_committed_spectra_have_the_committed_epsilons(name):
    table = stores.read(common_directions.SPECTRUM).query("name == @name").sort_values("rank")
    found = isotropy.Spectrum(int(table.V.iloc[0]), table.value.iloc[0], table.value.iloc[1:].to_numpy())
    row = survey.read().set_index("name").loc[name]
    assert (found.rows, len(found.eigenvalues)) == (row.V - row.zero_rows, row.d_model)
    assert (found.mean, found.std, found.epsilon) == pytest.approx((row["mean"], row["std"], row.epsilon), abs=2e-6)


@pytest.mark.parametrize("name", models.registry())
def test_the_committed_removals_agree_with_the_survey(name):
    ours = stores.read(common_directions.REMOVAL).query("name == @name").set_index(["centred", "components"]).epsilon
    theirs = stores.read(survey.ISOTROPY).query("name == @name").set_index(["centred", "components"]).epsilon
    assert ours.loc[theirs.index].to_numpy() == pytest.approx(theirs.to_numpy(), abs=1e-6)
    assert set(stores.read(common_directions.FACTS)["name"]) == set(models.registry())
    assert set(stores.read(common_directions.SURROGATES)["name"]) == set(models.registry())
