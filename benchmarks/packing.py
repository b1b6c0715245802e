"""Cost of the packing engine: its step against the bare product and the published procedure's step, memory, time to a coherence.

    python benchmarks/packing.py [--quick] [--json FILE] [--convergence FILE.csv]

Times are the best of alternating runs in one process. --convergence also runs the published procedure to its end, a quarter of
an hour on two cores, and stores how the coherence of both falls with time: data/sweeps/packing_convergence.csv. Keep the
machine otherwise idle.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import torch
from common import Figures, options, printed_by, publish

from repcap_utils import __version__, packing, sweep
from repcap_utils.kernels import fused_tiles, torch_tiles
from repcap_utils.paths import write_text

PRINTED = {(2000, 64): 0.2363, (2000, 512): 0.0527}
"""Coherence by cell that arXiv 2606.02765 prints (sec. 3.3, fig. 7): to be gone below."""

POINTS = 80  # stored of a run, evenly spaced in the logarithm of the step

MEMORY = """
import sys
from common import peak_bytes
from repcap_utils import packing
k, d = int(sys.argv[1]), int(sys.argv[2])
packing.optimise(600, 32, steps=1)
before = peak_bytes()
packing.optimise(k, d, steps=1)
print(peak_bytes() - before)
"""


def fastest(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each action, the best of `rounds` alternating runs after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in times.items()}


def steps_of(procedure: Callable[..., packing.Packing], k: int, d: int, steps: int) -> float:
    """Seconds of one step: the best interval between two reports of progress."""
    stamps = []
    procedure(k, d, steps=steps, progress=lambda step, coherence: stamps.append(time.perf_counter()))
    return float(np.diff(stamps).min())


def product_share(k: int, d: int, steps: int) -> dict[str, float]:
    """A step's rate, at 3 k^2 d operations, over that of the square float32 product of the same two sizes."""
    vectors = packing.random_unit_vectors(k, d, 0).float()
    product = fastest({"product": lambda: vectors @ vectors.T}, 3)["product"]
    step = steps_of(packing.optimise, k, d, steps)
    return {"step_gflops": 3e-9 * k * k * d / step, "product_gflops": 2e-9 * k * k * d / product}


def step_ratio(k: int, d: int, steps: int) -> float:
    """How many steps of the engine one step of the published procedure takes."""
    ours, theirs = zip(
        *(
            (steps_of(packing.optimise, k, d, steps), steps_of(packing.optimise_published, k, d, steps))
            for _ in range(3)
        ),
        strict=True,
    )
    return min(theirs) / min(ours)


def fused_ratio(d: int, power: int = 199) -> float:
    """Time of a tile whose elementwise work torch.compile has fused over that of the plain tile; without a compiler, NaN."""
    if not fused_tiles.compiles():
        return float("nan")
    a, b = (packing.random_unit_vectors(packing.CPU_TILE, d, seed).float() for seed in (0, 1))

    def of(module: ModuleType) -> Callable[[], object]:
        return lambda: module.gram_power_tile(a, b, power, 0.5, diagonal=False)

    times = fastest({"plain": of(torch_tiles), "fused": of(fused_tiles)}, 200)
    return times["fused"] / times["plain"]


def working_memory(k: int, d: int) -> int:
    """Rise of the peak resident size of a fresh process by one step and the certificate, in bytes (Linux)."""
    return printed_by(MEMORY, k, d)


def traced(method: str, k: int, d: int, steps: int) -> pd.DataFrame:
    """A run of a procedure: seconds since its start and coherence at each step, the lowest so far for the engine."""
    stamps: list[tuple[int, float, float]] = []
    start = time.perf_counter()

    def note(step: int, coherence: float) -> None:
        stamps.append((step, time.perf_counter() - start, coherence))

    sweep.METHODS[method](k, d, seed=0, steps=steps, progress=note)
    trace = pd.DataFrame(stamps, columns=["step", "seconds", "coherence"])
    if method.startswith("optimise"):
        trace["coherence"] = trace.coherence.cummin()
    return trace.assign(method=method, k=k, d=d, steps=steps)


def convergence(published_steps: int) -> pd.DataFrame:
    """Traces of both procedures on the printed cells, one after the other in this process."""
    traces = []
    for k, d in PRINTED:
        for method, steps in (("optimise-2", sweep.DEFAULT_STEPS["optimise-2"]), ("published-1", published_steps)):
            traces.append(traced(method, k, d, steps))
    return pd.concat(traces, ignore_index=True)


def times_to_printed(traces: pd.DataFrame) -> dict[str, float]:
    """By cell, the published procedure's whole time over the engine's time to get below the printed coherence."""
    ratios = {}
    for (k, d), printed in PRINTED.items():
        here = traces[(traces.k == k) & (traces.d == d)]
        ours, theirs = (here[here.method == method] for method in ("optimise-2", "published-1"))
        below = ours.seconds[ours.coherence < printed]
        whole = theirs.seconds.max() * 5000 / theirs.step.max()
        ratios[f"published_5000_steps_over_time_to_printed_{k}x{d}"] = whole / below.min() if len(below) else 0.0
    return ratios


def thinned(traces: pd.DataFrame) -> pd.DataFrame:
    """At most `POINTS` rows of each run, with their origin, for the store."""
    kept = []
    for _, run in traces.groupby(["k", "d", "method"], sort=True):
        kept.append(run.iloc[np.unique(np.geomspace(1, len(run), POINTS).round().astype(int) - 1)])
    table = pd.concat(kept).assign(threads=torch.get_num_threads(), version=__version__, commit=sweep.commit())
    table = table.round({"seconds": 3, "coherence": 6})
    columns = ["method", "k", "d", "steps", "step", "seconds", "coherence", "threads", "version", "commit"]
    return table[columns].astype({"step": int})


def measure(quick: bool) -> Figures:
    """All figures but the convergence, by name."""
    large, middle, huge = ((800, 256), (500, 64), (3000, 64)) if quick else ((8000, 1024), (4000, 256), (32_000, 1024))
    rates = product_share(*large, steps=3 if quick else 6)
    return {
        "threads": torch.get_num_threads(),
        "step_shape": "{} x {}".format(*large),
        **rates,
        "share_of_product_rate": rates["step_gflops"] / rates["product_gflops"],
        "published_step_over_our_step": step_ratio(*middle, steps=4 if quick else 12),
        "published_step_shape": "{} x {}".format(*middle),
        **{f"fused_tile_over_plain_tile_d{d}": fused_ratio(d) for d in ((32,) if quick else (32, 128))},
        "memory_shape": "{} x {} float32".format(*huge),
        "memory_mb": working_memory(*huge) / 1e6,
    }


def main() -> None:
    """Print the table as markdown; with --json and --convergence also write files."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--convergence", type=Path, metavar="FILE", help="also trace both procedures into FILE")
    arguments = parser.parse_args()
    figures = measure(arguments.quick)
    if arguments.convergence:
        traces = convergence(20 if arguments.quick else 5000)
        figures |= times_to_printed(traces)
        write_text(arguments.convergence, thinned(traces).to_csv(index=False, lineterminator="\n"))
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
