"""Pairwise cosines against a float64 brute force over all pairs."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repcap_utils import similarity
from repcap_utils.errors import RepcapError
from repcap_utils.paths import ROOT
from repcap_utils.similarity import (
    cosine_histogram,
    cosine_moments,
    extremes,
    nearest_neighbours,
    random_floor,
)

TOLERANCE = 1e-7


def normal(rows: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def unit(weight: torch.Tensor) -> torch.Tensor:
    rows = weight.double()
    rows = rows[(rows != 0).any(dim=1)]
    rows = rows / rows.abs().amax(dim=1, keepdim=True)
    return rows / rows.norm(dim=1, keepdim=True)


def pair_cosines(weight: torch.Tensor) -> np.ndarray:
    rows = unit(weight).numpy()
    return (rows @ rows.T)[np.triu_indices(len(rows), 1)]


def assert_moments(weight: torch.Tensor) -> None:
    cosines = pair_cosines(weight)
    for route in (similarity._direct_moments, similarity._gram_moments):
        mean, variance = route(similarity.unit_rows(weight))
        assert abs(mean - cosines.mean()) < TOLERANCE, route.__name__
        assert abs(math.sqrt(max(variance, 0.0)) - cosines.std()) < TOLERANCE, route.__name__
    moments = cosine_moments(weight)
    assert moments.pairs == len(cosines)
    assert abs(moments.mean - cosines.mean()) < TOLERANCE
    assert abs(moments.std - cosines.std()) < TOLERANCE
    assert moments.epsilon == moments.mean + 2 * moments.std


@st.composite
def matrices(draw: st.DrawFn, most_rows: int = 400) -> torch.Tensor:
    """Rows of one or several clusters, of all lengths and types, some of them zero and some repeated."""
    rows, d = draw(st.integers(3, most_rows)), draw(st.integers(1, 24))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]))
    spread = draw(st.sampled_from([1.0, 1e-2, 1e-5]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    centres = torch.randn(draw(st.integers(1, 3)), d, generator=generator, dtype=torch.float64)
    weight = centres[torch.randint(len(centres), (rows,), generator=generator)]
    weight = weight + spread * torch.randn(rows, d, generator=generator, dtype=torch.float64)
    decades = draw(st.sampled_from([0, 2] if dtype == torch.float16 else [0, 2, 30]))
    weight *= 10.0 ** ((2 * torch.rand(rows, 1, generator=generator, dtype=torch.float64) - 1) * decades)
    weight = weight.to(dtype)
    weight[torch.rand(rows, generator=generator) < draw(st.sampled_from([0.0, 0.2]))] = 0.0
    weight[-1] = weight[0] = 1.0
    return weight


@settings(deadline=None, derandomize=True, max_examples=80)
@given(matrices())
def test_moments_equal_brute_force(weight: torch.Tensor) -> None:
    assert_moments(weight)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(matrices(150))
def test_rows_are_counted(weight: torch.Tensor) -> None:
    moments = cosine_moments(weight)
    kept = weight[(weight != 0).any(dim=1)].double()
    assert moments.rows == len(kept)
    assert moments.rows + moments.zero_rows == len(weight)
    assert moments.duplicate_rows == len(kept) - len(torch.unique(kept, dim=0)) >= 1


HARD = {
    "nearly constant": lambda: normal(1, 64, 1) + 1e-4 * normal(900, 64, 2),
    "nearly constant in float64": lambda: normal(1, 64, 1).double() + 1e-9 * normal(900, 64, 2, torch.float64),
    "all equal": lambda: torch.full((900, 64), 0.3),
    "three clusters": lambda: normal(3, 64, 1)[torch.arange(900) % 3],
    "antipodal": lambda: normal(1, 64, 1) * (1 - 2 * (torch.arange(900) % 2))[:, None],
    "lengths over 60 decades": lambda: normal(900, 64) * 10.0 ** torch.linspace(-30, 30, 900)[:, None],
    "lengths over 600 decades": lambda: (
        normal(900, 64).double() * 10.0 ** torch.linspace(-300, 300, 900).double()[:, None]
    ),
    "subnormal": lambda: torch.tensor([[5e-324, 0.0], [1e308, 1e308], [0.0, -5e-324]], dtype=torch.float64),
    "simplex": lambda: torch.eye(300, dtype=torch.float64) - 1 / 300,
    "orthonormal": lambda: torch.eye(300),
    "one dimension": lambda: normal(700, 1),
    "more dimensions than rows": lambda: normal(5, 300),
}


@pytest.mark.parametrize("name", HARD)
def test_moments_of_hard_matrices(name: str) -> None:
    assert_moments(HARD[name]())


def test_moments_by_hand() -> None:
    moments = cosine_moments(torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]))
    assert (moments.pairs, moments.rows, moments.zero_rows, moments.duplicate_rows) == (3, 3, 1, 0)
    assert moments.mean == pytest.approx(-1 / 3)
    assert moments.std == pytest.approx(math.sqrt(2) / 3)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal(500, 12)
    weight[::7] = 0.0
    whole, near = cosine_moments(weight), nearest_neighbours(weight, 3)
    monkeypatch.setattr(similarity, "SCRATCH_BYTES", 1)
    monkeypatch.setattr(similarity, "GRAM_PANEL", 5)
    assert similarity.block_rows(12) == 16
    small = cosine_moments(weight)
    assert small.mean == pytest.approx(whole.mean, abs=1e-14)
    assert small.std == pytest.approx(whole.std, abs=1e-14)
    assert torch.equal(nearest_neighbours(weight, 3)[1], near[1])


def test_cosines_do_not_depend_on_lengths_rotation_or_order() -> None:
    generator = torch.Generator().manual_seed(5)
    weight = normal(400, 20, dtype=torch.float64) + 0.3
    expected = cosine_moments(weight)
    rotation = torch.linalg.qr(normal(20, 20, 6, torch.float64)).Q
    variants = (
        weight * (0.1 + torch.rand(400, 1, generator=generator, dtype=torch.float64)),
        weight @ rotation,
        weight[torch.randperm(400, generator=generator)],
        -weight,
        weight.T.contiguous().T,
    )
    for variant in variants:
        moments = cosine_moments(variant)
        assert moments.mean == pytest.approx(expected.mean, abs=1e-12)
        assert moments.std == pytest.approx(expected.std, abs=1e-12)


def test_arrays_parameters_and_devices_are_accepted_and_left_alone() -> None:
    array = normal(300, 8).numpy()
    expected = cosine_moments(torch.from_numpy(array.copy()))
    array.flags.writeable = False
    assert cosine_moments(array) == expected
    assert cosine_moments(array[::-1]).mean == pytest.approx(expected.mean)
    double = normal(300, 8, dtype=torch.float64)
    kept = double.clone()
    assert cosine_moments(torch.nn.Parameter(double), device="cpu").pairs == 300 * 299 // 2
    extremes(double), cosine_histogram(double)
    assert torch.equal(double, kept)


def test_duplicates_with_signed_zeros_and_colliding_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [2.0, 1.0], [0.0, 0.0], [2.0, 1.0], [2.0, 1.0], [4.0, 2.0]])
    assert cosine_moments(weight).duplicate_rows == 3
    monkeypatch.setattr(similarity, "_hashes", lambda rows: torch.zeros(len(rows), dtype=torch.int64))
    assert cosine_moments(weight).duplicate_rows == 3


@settings(deadline=None, derandomize=True, max_examples=40)
@given(matrices(), st.sampled_from([1, 10, 200, 400]), st.sampled_from([16, 100, None]))
def test_histogram_equals_numpy(weight: torch.Tensor, bins: int, tile: int | None) -> None:
    cosines = np.clip(pair_cosines(weight), -1.0, 1.0)
    histogram = cosine_histogram(weight, bins, tile=tile)
    assert histogram.counts.dtype == np.int64
    assert histogram.counts.sum() == len(cosines)
    assert (histogram.below, histogram.above) == (0, 0)
    # Cosines near an edge may move to the other side: compare cumulative counts just beside each edge.
    np.testing.assert_allclose(histogram.edges, np.linspace(-1, 1, bins + 1), atol=1e-15)
    cumulative = np.cumsum(histogram.counts)[:-1]
    ordered = np.sort(cosines)
    assert (cumulative >= np.searchsorted(ordered, histogram.edges[1:-1] - 2e-6)).all()
    assert (cumulative <= np.searchsorted(ordered, histogram.edges[1:-1] + 2e-6)).all()


def test_histogram_agrees_exactly_in_float64() -> None:
    weight = normal(500, 10, dtype=torch.float64)
    counts, edges = cosine_histogram(weight, 37, tile=64)
    expected, expected_edges = np.histogram(pair_cosines(weight), 37, (-1, 1))
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_allclose(edges, expected_edges, atol=1e-15)


def test_histogram_of_a_narrow_range_counts_what_lies_outside() -> None:
    weight = normal(300, 10, dtype=torch.float64)
    cosines = pair_cosines(weight)
    histogram = cosine_histogram(weight, 20, (-0.1, 0.3))
    np.testing.assert_array_equal(histogram.counts, np.histogram(cosines, 20, (-0.1, 0.3))[0])
    assert histogram.below == (cosines < -0.1).sum() > 0
    assert histogram.above == (cosines > 0.3).sum() > 0
    beyond = cosine_histogram(weight, 20, (2.0, 3.0))
    assert (beyond.below, beyond.counts.sum(), beyond.above) == (len(cosines), 0, 0)
    again = pickle.loads(pickle.dumps(histogram))
    assert (again.below, again.above) == (histogram.below, histogram.above)


@pytest.mark.parametrize("tile", [None, 16])
@pytest.mark.parametrize("window", [(-1.0, 1.0), (0.2, 0.3), (2.0, 3.0)])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_histogram_tells_the_moments_and_extremes_of_all_pairs(
    tile: int | None, window: tuple[float, float], shift: float
) -> None:
    weight = normal(300, 12) + shift
    weight[7] = 0.0
    cosines, moments = pair_cosines(weight), cosine_moments(weight)
    histogram = cosine_histogram(weight, 30, window, tile=tile)
    assert histogram.mean == pytest.approx(moments.mean, abs=1e-6)
    assert histogram.std == pytest.approx(moments.std, abs=1e-5)
    assert histogram.minimum == pytest.approx(cosines.min(), abs=1e-6)
    assert histogram.maximum == pytest.approx(cosines.max(), abs=1e-6)
    again = pickle.loads(pickle.dumps(histogram))
    assert (again.mean, again.std, again.minimum, again.maximum) == (
        histogram.mean,
        histogram.std,
        histogram.minimum,
        histogram.maximum,
    )


def test_histogram_moments_of_two_opposite_rows_stay_in_range() -> None:
    row = normal(1, 37, 3)
    histogram = cosine_histogram(torch.cat([row, -row, 3.0 * row]))
    assert -1.0 <= histogram.minimum == pytest.approx(-1.0)
    assert 1.0 >= histogram.maximum == pytest.approx(1.0)
    assert histogram.mean == pytest.approx(-1 / 3)
    assert histogram.std == pytest.approx(math.sqrt(8) / 3)


def test_a_bin_holds_more_than_float32_can_count() -> None:
    histogram = cosine_histogram(torch.full((6000, 3), 0.7))
    assert histogram.counts[-1] == histogram.counts.sum() == 17_997_000


def test_histogram_reports_progress() -> None:
    seen: list[tuple[int, int]] = []
    cosine_histogram(normal(100, 4), tile=30, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == 10
    assert seen == sorted(seen)
    assert seen[-1] == (4950, 4950)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(matrices())
def test_extremes_equal_brute_force(weight: torch.Tensor) -> None:
    cosines = np.clip(pair_cosines(weight), -1.0, 1.0)
    found = extremes(weight)
    assert found.maximum == pytest.approx(cosines.max(), abs=1e-6)
    assert found.minimum == pytest.approx(cosines.min(), abs=1e-6)
    for value, (i, j) in ((found.maximum, found.maximum_pair), (found.minimum, found.minimum_pair)):
        assert 0 <= i < j < len(weight)
        assert value == pytest.approx(pair_cosines(weight[[i, j]])[0], abs=1e-12)


def test_extremes_across_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "CPU_TILE", 16)
    weight = normal(100, 30, dtype=torch.float64)
    weight[3] = 0.0
    weight[90] = 2.0 * weight[5]
    weight[95] = -weight[40]
    found = extremes(weight)
    assert (found.maximum_pair, found.minimum_pair) == ((5, 90), (40, 95))
    assert (found.maximum, found.minimum) == (pytest.approx(1.0), pytest.approx(-1.0))


@settings(deadline=None, derandomize=True, max_examples=30)
@given(matrices(200), st.integers(1, 4), st.sampled_from([16, 2048]))
def test_neighbours_equal_brute_force(weight: torch.Tensor, k: int, tile: int) -> None:
    kept = torch.nonzero((weight != 0).any(dim=1)).squeeze(1)
    if len(kept) <= k:
        return
    rows = unit(weight)
    cosines = (rows @ rows.T).clamp(-1, 1)
    cosines.fill_diagonal_(-2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "CPU_TILE", tile)
        values, indices = nearest_neighbours(weight, k)
    assert values.shape == indices.shape == (len(weight), k)
    torch.testing.assert_close(values[kept].double(), cosines.topk(k, dim=1).values, atol=1e-6, rtol=0)
    position = torch.full((len(weight),), -1)
    position[kept] = torch.arange(len(kept))
    named = cosines.gather(1, position[indices[kept]])
    torch.testing.assert_close(values[kept].double(), named, atol=1e-6, rtol=0)
    assert all(len(set(row)) == k for row in indices[kept].tolist())
    zero = torch.ones(len(weight), dtype=torch.bool)
    zero[kept] = False
    assert (indices[zero] == -1).all()
    assert (values[zero] == 0).all()


@pytest.mark.parametrize("tile", [1, 2, 3, 100])
def test_equal_neighbours_come_in_the_order_of_their_rows(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "block_rows", lambda d_model, most=0: tile)
    weight = torch.eye(3)[[0, 1, 0, 2, 0, 1, 0]]
    weight[3] = 0.0
    _, indices = nearest_neighbours(weight, 4)
    assert indices.tolist() == [
        [2, 4, 6, 1],
        [5, 0, 2, 4],
        [0, 4, 6, 1],
        [-1, -1, -1, -1],
        [0, 2, 6, 1],
        [1, 0, 2, 4],
        [0, 2, 4, 1],
    ]


def test_random_directions_reach_the_random_floor() -> None:
    assert random_floor(400) == 0.1
    moments = cosine_moments(normal(3000, 400))
    assert moments.epsilon == pytest.approx(random_floor(400), rel=0.02)
    with pytest.raises(RepcapError, match="d_model is 0"):
        random_floor(0)


CALLS = [cosine_moments, cosine_histogram, extremes, nearest_neighbours]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_row_that_is_not_finite_is_named(call, dtype: torch.dtype, value: float) -> None:
    weight = normal(1500, 4, dtype=dtype)
    weight[0] = 0.0
    weight[1203, 2] = weight[1400, 0] = value
    with pytest.raises(RepcapError, match="row 1203 "):
        call(weight)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(5), r"shape \(5,\)"),
        (torch.ones(2, 3, 4), r"shape \(2, 3, 4\)"),
        (torch.ones(1, 4), "has 1 non-zero rows"),
        (torch.zeros(7, 4), "has 0 non-zero rows"),
        (torch.eye(4)[[0]].expand(1, 4), "has 1 non-zero rows"),
        (torch.ones(0, 4), "empty"),
        (torch.ones(4, 0), "empty"),
        (torch.ones(4, 4, dtype=torch.int64), "int64"),
        (np.ones((4, 4), dtype=np.int32), "int32"),
        (np.ones((4, 4), dtype=complex), "complex128"),
    ],
)
def test_what_is_no_matrix_of_vectors_is_refused(call, weight, message: str) -> None:
    with pytest.raises(RepcapError, match=message):
        call(weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bins": 0}, "bins is 0"),
        ({"bins": 10**7}, "bins is 10000000"),
        ({"range": (0.5, 0.5)}, "lower one first"),
        ({"range": (1.0, -1.0)}, "lower one first"),
        ({"range": (math.nan, 1.0)}, "lower one first"),
        ({"range": (-1e308, 1e308)}, "finite"),
        ({"range": (0.0,)}, "two numbers"),
        ({"range": (0.0, 1e-6)}, "narrower"),
        ({"tile": 0}, "tile is 0"),
        ({"device": "nowhere"}, "'nowhere'"),
    ],
)
def test_histogram_arguments_are_checked(arguments: dict, message: str) -> None:
    with pytest.raises(RepcapError, match=message):
        cosine_histogram(normal(5, 3), **arguments)


@pytest.mark.parametrize("k", [0, -1, 4, 5])
def test_the_number_of_neighbours_is_checked(k: int) -> None:
    weight = torch.cat([torch.eye(4), torch.zeros(3, 4)])
    with pytest.raises(RepcapError, match=f"k is {k}"):
        nearest_neighbours(weight, k)


# VmHWM, since ru_maxrss of a child starts at the peak of the process that started it.
MEMORY = """
from pathlib import Path
import torch
from repcap_utils.similarity import cosine_histogram, cosine_moments, extremes
def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])
def use(weight):
    cosine_moments(weight), cosine_histogram(weight), extremes(weight)
torch.set_num_threads(1)
use(torch.randn(600, 32))
weight = torch.randn(12000, 256).to(torch.bfloat16)
before = peak()
use(weight)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from Linux's /proc")
def test_scratch_is_far_below_the_matrix_of_all_pairs() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=ROOT, capture_output=True, text=True, check=True)
    all_pairs = 12_000 * 12_000 * 4
    assert 0 < int(done.stdout) * 1024 < all_pairs / 2
