"""Cost of the exact moments: the Gram identity against tiles of all pairs, and the memory it needs.

    python benchmarks/similarity.py [--quick] [--json FILE]

Times are the best of alternating runs in one process; memory is the rise of the peak resident size in a fresh process
that already holds the matrix.
"""

import math
import time

import torch
from common import Figures, options, printed_by, publish

from repcap_utils.similarity import UnitRows, cosine_histogram, cosine_moments, unit_rows

TILE = 2048

MEMORY = """
import sys
import torch
from common import peak_bytes
from repcap_utils.similarity import cosine_moments
rows, d = int(sys.argv[1]), int(sys.argv[2])
weight = torch.empty(rows, d, dtype=torch.bfloat16)
for start in range(0, rows, 1000):
    weight[start : start + 1000] = torch.randn(len(weight[start : start + 1000]), d)
cosine_moments(torch.randn(600, 32))
before = peak_bytes()
cosine_moments(weight)
print(peak_bytes() - before)
"""


def tiled_moments(weight: torch.Tensor) -> tuple[float, float]:
    """Mean and standard deviation from float32 tiles of the upper triangle, summed in float64."""
    rows = unit_rows(weight)
    unit = torch.cat([block.float() for block in rows.blocks()])
    total = square = 0.0
    for i in range(0, len(unit), TILE):
        for j in range(i, len(unit), TILE):
            cosines = unit[i : i + TILE] @ unit[j : j + TILE].T
            if i == j:
                cosines.triu_(1)
            total += float(cosines.sum(dtype=torch.float64))
            square += float(cosines.square_().sum(dtype=torch.float64))
    return _moments(rows, total, square)


def _moments(rows: UnitRows, total: float, square: float) -> tuple[float, float]:
    pairs = len(rows) * (len(rows) - 1) // 2
    mean = total / pairs
    return mean, math.sqrt(max(square / pairs - mean**2, 0.0))


def best_times(rows: int, d: int, rounds: int) -> dict[str, float]:
    """Seconds of both routes on the same matrix, after checking that they agree."""
    weight = torch.randn(rows, d, generator=torch.Generator().manual_seed(0)) + 0.5
    cosine_moments(weight[:1000]), tiled_moments(weight[:1000])
    gram, tiled = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        moments = cosine_moments(weight)
        gram.append(time.perf_counter() - start)
        start = time.perf_counter()
        mean, std = tiled_moments(weight)
        tiled.append(time.perf_counter() - start)
        if abs(mean - moments.mean) > 1e-6 or abs(std - moments.std) > 1e-6:
            raise SystemExit(f"the two routes disagree: {mean}, {std} against {moments}")
    return {"gram": min(gram), "tiled": min(tiled)}


def histogram_rate(rows: int, d: int) -> float:
    """Pairs a second of the histogram with 200 bins."""
    weight = torch.randn(rows, d, generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    counts = cosine_histogram(weight).counts
    return float(counts.sum()) / (time.perf_counter() - start)


def scratch_bytes(rows: int, d: int) -> int:
    """Rise of the peak resident size over a process that holds a bfloat16 matrix (Linux)."""
    return printed_by(MEMORY, rows, d)


def measure(quick: bool) -> Figures:
    """All figures, by name."""
    rows, d, rounds = (4000, 256, 2) if quick else (32_000, 1024, 3)
    wide_rows, wide_d = (4000, 512) if quick else (32_000, 4096)
    times = best_times(rows, d, rounds)
    return {
        "shape": f"{rows} x {d}",
        "threads": torch.get_num_threads(),
        "gram_seconds": times["gram"],
        "tiled_seconds": times["tiled"],
        "speedup": times["tiled"] / times["gram"],
        "histogram_pairs_per_second": histogram_rate(rows // 2, d),
        "memory_shape": f"{wide_rows} x {wide_d} bfloat16",
        "memory_above_matrix_mb": scratch_bytes(wide_rows, wide_d) / 1e6,
    }


def main() -> None:
    """Print the table as markdown; with --json also write the figures to a file."""
    arguments = options(__doc__.splitlines()[0]).parse_args()
    publish(measure(arguments.quick), arguments.json)


if __name__ == "__main__":
    main()
