"""Rows that no token uses: each kind is planted in a matrix and must be found, no more and no less."""

import numpy as np
import pytest
import torch

from repcap_utils import rows
from repcap_utils.errors import RepcapError
from repcap_utils.similarity import cosine_moments, moments_with_and_without, unit_rows

V, D = 2000, 64


def ordinary(seed: int = 0, shift: float = 0.0, spread: float = 0.2) -> torch.Tensor:
    """Independent rows of unequal lengths around a common mean."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.exp(spread * torch.randn(V, 1, generator=generator))
    return lengths * (torch.randn(V, D, generator=generator) + shift * torch.randn(D, generator=generator))


def noise(count: int, seed: int = 9) -> torch.Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed))


def planted() -> tuple[torch.Tensor, dict[str, list[int]]]:
    weight, index = ordinary(shift=1.0), {}
    index["zero"] = [3, 700, 701]
    weight[index["zero"]] = 0.0
    index["duplicate"] = [800, 900, 1500]
    weight[index["duplicate"]] = weight[[10, 20, 30]]
    index["near_constant"] = [40, 41]
    weight[index["near_constant"]] = 1.5 + 8e-3 * noise(2)
    index["untrained"] = [*range(1000, 1012), *range(1200, 1205)]
    weight[1000:1012] = noise(1, 8) + 1e-3 * noise(12)
    weight[1200:1205] = 1e-3 * noise(5)
    index["padded"] = list(range(1990, 2000))
    return weight, index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_each_kind_is_found(dtype):
    weight, index = planted()
    found = rows.report(weight.to(dtype), vocab_size=1990)
    every = sorted({row for part in index.values() for row in part})
    for kind, expected in (index | {"flagged": every}).items():
        rowset = found.kinds[kind]
        assert (kind, rowset.count, list(rowset.rows)) == (kind, len(expected), expected[: rows.EXAMPLES])
        assert rowset.tokens is None


def test_both_epsilons_are_those_of_the_matrices():
    weight, index = planted()
    found = rows.report(weight, vocab_size=1990)
    assert found.moments == cosine_moments(weight)
    kept = [row for row in range(V) if row not in {row for part in index.values() for row in part}]
    direct = cosine_moments(weight[kept])
    assert found.without.epsilon == pytest.approx(direct.epsilon, abs=1e-10)
    assert (found.without.rows, found.without.pairs, found.without.duplicate_rows) == (len(kept), direct.pairs, 0)
    assert found.without.epsilon != pytest.approx(found.moments.epsilon, abs=1e-4)


@pytest.mark.parametrize("shift", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_ordinary_rows_are_not_suspected(shift, spread):
    """Also where all rows point nearly the same way, or are of widely different lengths."""
    found = rows.report(ordinary(seed=1, shift=shift, spread=spread))
    known = {kind: rowset.count for kind, rowset in found.kinds.items() if rowset is not None}
    assert known == dict.fromkeys(("zero", "duplicate", "near_constant", "untrained", "flagged"), 0)
    assert found.without == found.moments


def test_rows_like_the_padding_are_untrained_too():
    weight = ordinary()
    unused = noise(1)
    weight[1950:] = unused + 1e-3 * noise(50, 3)
    weight[5] = unused + 1e-3 * noise(1, 4)
    found = rows.report(weight, vocab_size=1950)
    assert (found.padded.count, found.untrained.count, found.untrained.rows[0]) == (50, 51, 5)


def test_tokens_name_the_rows_and_tell_the_padding():
    weight, index = planted()
    tokens = [f"t{row}" if row not in (5, *index["padded"]) else f"<row {row}>" for row in range(V)]
    found = rows.report(weight, tokens)
    assert found.zero.tokens == ("t3", "t700", "t701")
    assert found.padded.rows == tuple(index["padded"][:8])
    assert found.padded.tokens[0] == "<row 1990>"
    assert rows.report(weight, tokens, vocab_size=V).padded.count == 0
    assert rows.report(weight).padded is None


def test_a_matrix_of_nothing_but_suspects_has_no_second_epsilon():
    weight = noise(1).repeat(40, 1)
    weight[0] *= 2.0
    found = rows.report(weight, vocab_size=0)
    assert found.flagged.count == 40
    assert found.without is None


@pytest.mark.parametrize("dropped", [[], [0], [5, 3, 1998], list(range(0, 1990)), list(range(0, 1500))])
def test_epsilon_without_some_rows_equals_that_of_the_others(dropped):
    weight = ordinary(shift=0.5).double()
    weight[100] = 0.0
    scanned = unit_rows(weight)
    whole, rest = moments_with_and_without(scanned, torch.tensor(dropped, dtype=torch.int64))
    kept = np.delete(np.delete(np.arange(V), 100), dropped)
    direct = cosine_moments(weight[torch.from_numpy(kept)])
    assert whole == cosine_moments(weight)
    assert (rest.mean, rest.std) == pytest.approx((direct.mean, direct.std), abs=1e-10)
    assert (rest.rows, rest.zero_rows) == (len(kept), 1)


def test_bad_input_is_refused():
    with pytest.raises(RepcapError, match="3 tokens for 4 rows"):
        rows.report(torch.ones(4, 2), ["a", "b", "c"])
    with pytest.raises(RepcapError, match="non-zero rows"):
        rows.report(torch.zeros(4, 2))
    with pytest.raises(RepcapError, match="non-zero rows"):
        moments_with_and_without(unit_rows(torch.ones(4, 2)), torch.arange(3))
