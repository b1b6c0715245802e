"""The fused tiles against the same thing done plainly."""

import numpy as np
import pytest
import torch

from repcap_utils.kernels.histogram import tile_counts


def unit(rows: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    vectors = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (vectors / vectors.norm(dim=1, keepdim=True)).to(dtype)


@pytest.mark.parametrize("bins", [1, 7, 253, 254, 1000, 100_000])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.3, 0.25), (0.4, 0.9)])
def test_tile_counts_equal_a_plain_histogram(bins: int, low: float, high: float) -> None:
    a, b = unit(61, 5, 0), unit(83, 5, 1)
    cosines = (a @ b.T).numpy()
    counts = tile_counts(a, b, bins=bins, low=low, high=high, diagonal=False).numpy()
    assert counts.dtype == np.int64
    assert counts[0] == (cosines < low).sum()
    assert counts[-1] == (cosines > high).sum()
    np.testing.assert_array_equal(counts[1:-1], np.histogram(cosines, bins, (low, high))[0])


@pytest.mark.parametrize("bins", [10, 300])
def test_a_diagonal_tile_counts_each_pair_once(bins: int) -> None:
    a = unit(70, 6, 2)
    cosines = (a @ a.T).numpy()[np.triu_indices(70, 1)]
    counts = tile_counts(a, a, bins=bins, low=-0.5, high=0.5, diagonal=True).numpy()
    assert counts.sum() == 70 * 69 // 2
    np.testing.assert_array_equal(counts[1:-1], np.histogram(cosines, bins, (-0.5, 0.5))[0])


def test_ends_are_closed_below_and_open_above() -> None:
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert tile_counts(a, b, bins=2, low=-1.0, high=1.0, diagonal=False).tolist() == [0, 1, 1, 1]
    assert tile_counts(a, b, bins=1, low=0.0, high=0.5, diagonal=False).tolist() == [1, 1, 1]


def test_float32_tiles_differ_only_near_edges() -> None:
    a, b = unit(200, 16, 3), unit(300, 16, 4)
    exact = tile_counts(a, b, bins=50, low=-1.0, high=1.0, diagonal=False)
    single = tile_counts(a.float(), b.float(), bins=50, low=-1.0, high=1.0, diagonal=False)
    assert single.sum() == exact.sum() == 60_000
    assert int((single - exact).abs().sum()) <= 4
