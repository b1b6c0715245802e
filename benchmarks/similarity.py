"""Cost of the exact moments: the Gram identity against tiles of all pairs, and the memory it needs.

    python benchmarks/similarity.py [--quick] [--json FILE]

Times are the best of alternating runs in one process; memory is the rise of the peak resident size in a fresh process
that already holds the matrix.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import torch

from repcap_utils.paths import ROOT, write_text
from repcap_utils.similarity import UnitRows, cosine_histogram, cosine_moments, unit_rows

TILE = 2048

# VmHWM, since ru_maxrss of a child starts at the peak of the process that started it.
MEMORY = """
import sys
from pathlib import Path
import torch
from repcap_utils.similarity import cosine_moments
def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])
rows, d = int(sys.argv[1]), int(sys.argv[2])
weight = torch.empty(rows, d, dtype=torch.bfloat16)
for start in range(0, rows, 1000):
    weight[start : start + 1000] = torch.randn(len(weight[start : start + 1000]), d)
cosine_moments(torch.randn(600, 32))
before = peak()
cosine_moments(weight)
print(peak() - before)
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
    command = [sys.executable, "-c", MEMORY, str(rows), str(d)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout) * 1024


def measure(quick: bool) -> dict[str, float | str | int]:
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small shapes, a few seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    arguments = parser.parse_args()
    figures = measure(arguments.quick)
    print("| figure | value |\n| --- | --- |")
    for name, value in figures.items():
        print(f"| {name.replace('_', ' ')} | {f'{value:.4g}' if isinstance(value, float) else value} |")
    if arguments.json:
        write_text(arguments.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
