import numpy as np
import pytest
import torch

from repcap_utils import embeddings, similarity, stores, survey, unembedding
from repcap_utils.errors import RepcapError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("STATISTICS", "HISTOGRAMS"):
        monkeypatch.setattr(unembedding, name, tmp_path / getattr(unembedding, name).name)
    return tmp_path


def random(rows, d, seed):
    return torch.randn(rows, d, generator=torch.Generator().manual_seed(seed))


def untied(rows=300, d=24, dtype=torch.float32):
    e, u = random(rows, d, 0) + 0.3, random(rows, d, 1) + 0.5
    return embeddings.Embedding(e.to(dtype), None, u.to(dtype), False, "small", d, str(dtype), {})


def units(matrix):
    return torch.nn.functional.normalize(matrix.double()).numpy()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_token_cosines_are_those_of_the_definition(dtype):
    model = untied(dtype=dtype)
    expected = (units(model.weight) * units(model.unembedding)).sum(axis=1)
    assert unembedding.token_cosines(model.weight, model.unembedding) == pytest.approx(expected, abs=1e-9)


def test_a_matrix_with_itself_and_its_negative():
    e = random(50, 8, 0)
    assert unembedding.token_cosines(e, 7 * e) == pytest.approx(np.ones(50))
    assert unembedding.token_cosines(e, -e) == pytest.approx(-np.ones(50))


@pytest.mark.parametrize(("zero_e", "zero_u"), [([], [5]), ([0, 3], []), ([1, 49], [1, 2, 48]), ([49], [49])])
def test_zero_rows_have_no_cosine_and_shift_nobody(zero_e, zero_u):
    e, u = random(50, 8, 0), random(50, 8, 1)
    expected = (units(e) * units(u)).sum(axis=1)
    e[zero_e], u[zero_u] = 0.0, 0.0
    found = unembedding.token_cosines(e, u)
    missing = np.isin(np.arange(50), [*zero_e, *zero_u])
    assert np.array_equal(np.isnan(found), missing)
    assert found[~missing] == pytest.approx(expected[~missing])


@pytest.mark.parametrize(("rows_e", "rows_u"), [(50, 64), (64, 50)])
def test_padding_rows_of_one_matrix_are_left_out(rows_e, rows_u):
    e, u = random(rows_e, 8, 0), random(rows_u, 8, 1)
    assert unembedding.token_cosines(e, u) == pytest.approx(unembedding.token_cosines(e[:50], u[:50]))


def test_cross_moments_are_those_of_all_different_tokens():
    model = untied()
    cosines = units(model.weight) @ units(model.unembedding).T
    other = cosines[~np.eye(300, dtype=bool)]
    found = unembedding.cross_moments(model.weight, model.unembedding)
    assert (found.mean, found.std, found.pairs) == pytest.approx((other.mean(), other.std(), 300 * 299))


def test_statistics_of_the_four_sets(folder):
    model = untied()
    unembedding.measure(model)
    table = stores.read(unembedding.STATISTICS).set_index("cosines")
    assert list(table.index) == [
        unembedding.SAME_TOKEN,
        unembedding.OTHER_TOKENS,
        unembedding.OF_E,
        unembedding.OF_U,
    ]
    for which, matrix in ((unembedding.OF_E, model.weight), (unembedding.OF_U, model.unembedding)):
        assert table.epsilon[which] == pytest.approx(similarity.cosine_moments(matrix).epsilon, abs=1e-6)
    own = unembedding.token_cosines(model.weight, model.unembedding)
    assert table["mean"][unembedding.SAME_TOKEN] == pytest.approx(own.mean(), abs=1e-6)
    assert table["count"].tolist() == [300, 300 * 299, 300 * 299 // 2, 300 * 299 // 2]
    counts = stores.read(unembedding.HISTOGRAMS).groupby("cosines")["count"].sum()
    assert counts.to_dict() == table["count"].drop(unembedding.OTHER_TOKENS).to_dict()


@pytest.mark.parametrize("measure", [unembedding.statistics_rows, unembedding.histogram_rows, unembedding.measure])
def test_a_tied_model_is_refused(measure, folder):
    tied = embeddings.Embedding(random(9, 4, 0), None, None, True, "tied", 4, "float32", {})
    with pytest.raises(RepcapError, match="tied has no unembedding of its own to compare; choose an untied model"):
        measure(tied)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("shape", [(50, 9), (50,)])
def test_matrices_of_different_widths_are_refused(shape):
    with pytest.raises(RepcapError, match="differ in width"):
        unembedding.token_cosines(random(50, 8, 0), torch.zeros(shape))


def test_committed_stores_belong_together():
    table = stores.read(unembedding.STATISTICS)
    assert "tiny-untied" in set(table["name"])
    counts = stores.read(unembedding.HISTOGRAMS).groupby(["name", "cosines"])["count"].sum()
    stored = table.set_index(["name", "cosines"])
    assert counts.to_dict() == stored["count"][counts.index].to_dict()
    assert stored["epsilon"].to_numpy() == pytest.approx((stored["mean"] + 2 * stored["std"]).to_numpy(), abs=3e-6)
    centres = (survey.edges()[1:] + survey.edges()[:-1]) / 2
    for key, rows in stores.read(unembedding.HISTOGRAMS).groupby(["name", "cosines"]):
        assert np.average(centres[rows["bin"]], weights=rows["count"]) == pytest.approx(stored["mean"][key], abs=0.006)
