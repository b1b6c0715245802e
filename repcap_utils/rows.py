"""Rows of an embedding matrix that no token uses, or that say nothing: which they are, and what they do to epsilon.

Vocabularies are padded, hold tokens that training never met, and matrices keep the rows of both. Such rows lie near zero, or
near one another, because they keep a common start and are pushed the same way; compare arXiv 2405.05417, which finds untrained
tokens by the norm and by the nearness to a common vector of unused rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from repcap_utils.errors import RepcapError
from repcap_utils.similarity import (
    CosineMoments,
    Matrix,
    UnitRows,
    duplicate_rows,
    moments_of,
    moments_with_and_without,
    unit_rows,
)

CONSTANT_SPREAD = 0.01
"""A row is near-constant when its entries spread by less than this part of their mean."""
SHORT_MADS = 6.0
SHORT_PART = 0.5
"""A row is short when its log-norm lies so many robust deviations below the median, and its norm below this part of it."""
NEAR_PART = 0.05
"""A row is near a common vector when its distance is below this part of the median distance of all rows to it."""
LEAST_GROUP = 3
MOST_GROUPS = 16
EXAMPLES = 8

_PROBES, _CELL = 8, 0.1


@dataclass(frozen=True)
class RowSet:
    """How many rows, the first of them, and their tokens (None without a tokenizer)."""

    count: int
    rows: tuple[int, ...]
    tokens: tuple[str, ...] | None


@dataclass(frozen=True)
class RowReport:
    """Kinds of rows that may not belong in epsilon; a row can be of several kinds.

    Attributes:
        zero: without a direction; left out of every epsilon.
        duplicate: equal, as stored, to an earlier row that is not zero.
        padded: beyond the last token; None where the number of tokens is not known.
        near_constant: entries that hardly differ from their mean (`CONSTANT_SPREAD`).
        untrained: short (`SHORT_MADS`, `SHORT_PART`), or near a vector (`NEAR_PART`) that padded or short rows, or at least
            three rows that agree with one another, have in common. A guess from the weights alone.
        flagged: of any kind, each row counted once.
        moments: of all rows but the zero ones.
        without: of the rows that are not flagged; None where fewer than two are left.
    """

    zero: RowSet
    duplicate: RowSet
    padded: RowSet | None
    near_constant: RowSet
    untrained: RowSet
    flagged: RowSet
    moments: CosineMoments
    without: CosineMoments | None

    @property
    def kinds(self) -> dict[str, RowSet | None]:
        """The sets by name; None where it is not known which rows belong to it."""
        names = [field.name for field in fields(self) if field.name not in ("moments", "without")]
        return {name: getattr(self, name) for name in names}


def report(weight: Matrix, tokens: Sequence[str] | None = None, vocab_size: int | None = None) -> RowReport:
    """Look through the rows of `weight` (V x d) in blocks; the Gram sums of one pass give both epsilons.

    Args:
        weight: V x d.
        tokens: V strings, where rows that no token owns are called `<row i>`; None where they are not known.
        vocab_size: number of tokens; taken from `tokens` where it is None. Without both, padding is not looked for.

    Raises:
        RepcapError: see `similarity.cosine_moments`; tokens that are not one a row.
    """
    rows = unit_rows(weight)
    if tokens is not None and len(tokens) != len(rows.matrix):
        raise RepcapError(f"{len(tokens)} tokens for {len(rows.matrix)} rows; pass one a row")
    if len(rows) < 2:
        raise RepcapError(f"weight of shape {tuple(rows.matrix.shape)} has {len(rows)} non-zero rows; a pair needs two")
    is_known = vocab_size is not None or tokens is not None
    count = vocab_size if vocab_size is not None else _last_token(tokens, len(rows.matrix))
    is_padded = rows.index >= count
    is_constant = _near_constant(rows)
    is_short = _short(rows)
    repeated = duplicate_rows(rows)
    masks = {
        "duplicate": _mask(len(rows), repeated),
        "padded": is_padded,
        "near_constant": is_constant,
        "untrained": is_short | _near_common(rows, [is_padded, is_short]),
    }
    flagged = torch.stack(list(masks.values())).any(dim=0)
    moments, without = _moments(rows, flagged.nonzero().squeeze(1), len(repeated))

    def found(index: Tensor) -> RowSet:
        first = tuple(index[:EXAMPLES].tolist())
        return RowSet(len(index), first, None if tokens is None else tuple(tokens[row] for row in first))

    zero = (~_mask(len(rows.matrix), rows.index)).nonzero().squeeze(1)
    padding = torch.arange(min(count, len(rows.matrix)), len(rows.matrix))
    sets = {name: found(rows.index[mask].cpu()) for name, mask in masks.items()}
    everything = torch.cat([zero.cpu(), padding, rows.index[flagged].cpu()]).unique()
    return RowReport(
        **sets
        | {"zero": found(zero.cpu()), "padded": found(padding) if is_known else None, "flagged": found(everything)},
        moments=moments,
        without=without,
    )


def _last_token(tokens: Sequence[str] | None, rows: int) -> int:
    """The number of rows up to the last one that a token owns."""
    if tokens is None:
        return rows
    return next((row + 1 for row in range(rows - 1, -1, -1) if tokens[row] != f"<row {row}>"), 0)


def _mask(count: int, positions: Tensor) -> Tensor:
    mask = torch.zeros(count, dtype=torch.bool, device=positions.device)
    mask[positions] = True
    return mask


def _moments(rows: UnitRows, dropped: Tensor, duplicates: int) -> tuple[CosineMoments, CosineMoments | None]:
    if len(rows) - len(dropped) < 2:
        return moments_of(rows, duplicates=duplicates), None
    if len(dropped) == 0:
        return (moments := moments_of(rows, duplicates=duplicates)), moments
    return moments_with_and_without(rows, dropped, duplicates=duplicates)


def _near_constant(rows: UnitRows) -> Tensor:
    if rows.d_model < 2:
        return torch.zeros(len(rows), dtype=torch.bool, device=rows.index.device)
    spreads = ((block.std(dim=1, correction=0), block.mean(dim=1).abs()) for block in rows.blocks())
    return torch.cat([spread <= CONSTANT_SPREAD * mean for spread, mean in spreads])


def _short(rows: UnitRows) -> Tensor:
    logs = rows.peaks.log() + rows.norms.log()
    median = logs.median()
    deviation = 1.4826 * (logs - median).abs().median()  # a normal distribution's standard deviation
    return (logs < median - SHORT_MADS * deviation) & (logs < median + torch.tensor(SHORT_PART).log())


def _near_common(rows: UnitRows, seeds: Sequence[Tensor]) -> Tensor:
    """Rows near the mean of a set of seed rows, or of a group of rows that agree with one another."""
    groups = [seed.nonzero().squeeze(1) for seed in seeds if int(seed.sum()) >= LEAST_GROUP] + _agreeing(rows)
    near = torch.zeros(len(rows), dtype=torch.bool, device=rows.index.device)
    if not groups:
        return near
    centres = torch.stack([_mean_row(rows, group) for group in groups])
    distances = torch.cat([torch.cdist(raw.double(), centres) for raw in _raw_blocks(rows)])
    return (distances < NEAR_PART * distances.median(dim=0).values).any(dim=1)


def _raw_blocks(rows: UnitRows):
    return (rows.raw(*span) for span in rows.spans())


def _mean_row(rows: UnitRows, positions: Tensor) -> Tensor:
    chosen = rows.chosen(positions.sort().values)
    return sum(raw.double().sum(dim=0) for raw in _raw_blocks(chosen)) / len(chosen)


def _agreeing(rows: UnitRows) -> list[Tensor]:
    """Positions of the largest groups of rows whose projections on a few random directions share a cell of a fine grid.

    Independent rows do not meet there: a cell is a tenth of a standard deviation wide in each of eight directions. Too few
    dimensions have no such directions, and no groups are sought.
    """
    if rows.d_model < 4 * _PROBES:
        return []
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(rows.d_model, _PROBES, generator=generator, dtype=torch.float64).to(rows.index.device)
    shadows = torch.cat([raw.double() @ probes for raw in _raw_blocks(rows)])
    width = _CELL * (shadows - shadows.median(dim=0).values).abs().median(dim=0).values * 1.4826
    if not bool((width > 0).all()):
        return []
    cells, sizes = (shadows / width).floor().unique(dim=0, return_inverse=True, return_counts=True)[1:]
    largest = [int(cell) for cell in sizes.argsort(descending=True, stable=True)[:MOST_GROUPS]]
    return [(cells == cell).nonzero().squeeze(1) for cell in largest if int(sizes[cell]) >= LEAST_GROUP]
