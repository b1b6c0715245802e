import numpy as np
import pandas as pd
import pytest
import torch

from repcap_utils import embeddings, models, similarity, survey
from repcap_utils.errors import RepcapError


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """The three stores in an empty folder."""
    keys = {}
    for name in ("EPSILON", "HISTOGRAMS", "ISOTROPY"):
        old = getattr(survey, name)
        new = tmp_path / old.name
        monkeypatch.setattr(survey, name, new)
        keys[new] = survey._KEYS[old]
    monkeypatch.setattr(survey, "_KEYS", keys)
    return tmp_path


@pytest.fixture
def embedding():
    weight = torch.randn(300, 24, generator=torch.Generator().manual_seed(0)) + 0.5
    return embeddings.Embedding(weight, None, None, True, "small", 24, "float32", {"file": "f", "tensor": "t"})


def test_a_row_says_what_was_measured(embedding):
    row = survey.measure(embedding)
    moments = similarity.cosine_moments(embedding.weight)
    assert (row["name"], row["V"], row["d_model"], row["tied"]) == ("small", 300, 24, "yes")
    assert row["epsilon"] == row["mean"] + 2 * row["std"] == moments.epsilon
    assert row["pairs"] == 300 * 299 // 2


def test_rows_replace_those_of_the_same_key(stores, embedding):
    row = survey.measure(embedding)
    survey.keep(survey.EPSILON, [row])
    survey.keep(survey.EPSILON, [row | {"name": "other", "mean": 1 / 3}])
    survey.keep(survey.EPSILON, [row | {"mean": 0.25}])
    table = survey.read(survey.EPSILON)
    assert list(table.name) == ["other", "small"]
    assert list(table["mean"]) == [0.33333333, 0.25]
    stamp = survey.EPSILON.stat().st_mtime_ns
    survey.keep(survey.EPSILON, [row | {"mean": 0.25 + 1e-12}])
    assert survey.EPSILON.stat().st_mtime_ns == stamp


def test_histogram_rows_hold_every_pair(stores, embedding):
    rows = survey.histogram_rows(embedding)
    survey.keep(survey.HISTOGRAMS, rows)
    table = survey.read(survey.HISTOGRAMS)
    assert table["count"].sum() == 300 * 299 // 2
    assert (table["count"] > 0).all()
    assert len(survey.edges()) == survey.BINS + 1
    centres = (survey.edges()[1:] + survey.edges()[:-1]) / 2
    mean = np.average(centres[table["bin"]], weights=table["count"])
    assert mean == pytest.approx(survey.measure(embedding)["mean"], abs=0.005)


def test_isotropy_rows_start_with_the_matrix_as_it_is(stores, embedding):
    rows = survey.isotropy_rows(embedding)
    assert [(row["centred"], row["components"]) for row in rows] == [
        ("no", 0),
        ("yes", 0),
        ("yes", 1),
        ("yes", 4),
        ("yes", 16),
    ]
    assert rows[0]["epsilon"] == pytest.approx(survey.measure(embedding)["epsilon"], abs=1e-9)
    assert abs(rows[1]["mean"]) < abs(rows[0]["mean"])
    survey.keep(survey.ISOTROPY, rows)
    survey.keep(survey.ISOTROPY, rows)
    assert len(survey.read(survey.ISOTROPY)) == 5


def test_a_missing_store_is_named(stores):
    with pytest.raises(RepcapError, match="make survey"):
        survey.read(survey.EPSILON)


def test_models_that_are_not_here_are_skipped_visibly(stores, tmp_path, monkeypatch):
    monkeypatch.setenv("REPCAP_MODELS", str(tmp_path / "nothing"))
    lines = list(survey.run())
    assert len(lines) == len(models.registry())
    assert all("SKIPPED" in line and "repcap models fetch" in line for line in lines)
    assert not survey.EPSILON.exists()


def test_committed_stores_belong_together():
    epsilon = survey.read(survey.EPSILON).set_index("name")
    counts = survey.read(survey.HISTOGRAMS).groupby("name")["count"].sum()
    as_is = survey.read(survey.ISOTROPY).query("centred == 'no'").set_index("name").epsilon
    assert set(epsilon.index) == set(models.registry()) == set(counts.index) == set(as_is.index)
    pd.testing.assert_series_equal(counts, epsilon.pairs, check_names=False, check_like=True)
    assert np.allclose(as_is[epsilon.index], epsilon.epsilon, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "epsilon", "tolerance"),
    [
        ("gemma-3-270m", 0.4153, 2e-4),
        ("smollm2-135m", 0.7287, 3e-4),
        ("all-minilm-l6-v2", 0.2014, 2e-4),
        ("whisper-tiny.en", 1.0045, 5e-4),
    ],
)
def test_epsilon_of_the_default_models(name, epsilon, tolerance):
    assert survey.read(survey.EPSILON).set_index("name").epsilon[name] == pytest.approx(epsilon, abs=tolerance)
    if not models.get(name).is_present:
        pytest.skip(f"the weights of {name} are not here: `make models`")
    live = similarity.cosine_moments(embeddings.load(name, tokens=False).weight)
    assert live.epsilon == pytest.approx(epsilon, abs=tolerance)
