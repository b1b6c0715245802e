"""The kernels and the packing engine on a CUDA device: right answers first, then times, then cells the store lacks.

    python benchmarks/gpu.py [--seconds 300] [--out FILE.json] [--store FILE.csv]
    python benchmarks/gpu.py --interpret

Answers are held against float64; a wrong one ends the run with exit status 1 and says what differs. Times are medians over
CUDA events, as ratios to plain torch and to the bare product of the same precision on the same device. --interpret runs the
first part for the kernels alone, in Triton's interpreter, on a machine without a GPU.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from repcap_utils import kernels, packing, sweep
from repcap_utils.kernels import torch_tiles
from repcap_utils.paths import write_text

METHOD = "optimise-2"
SIGNIFICANT_BITS = {"ieee": 24, "tf32": 11, "bf16": 8}
# Error of a product of unit rows already rounded to the precision, for each of the d terms: what float32 accumulation may
# cost. Tensor cores cut off where a float32 addition rounds, so their errors add up instead of cancelling.
ERROR_A_TERM = {"ieee": 2e-9, "tf32": 3e-8, "bf16": 3e-8}
LEAST_ERROR = 1e-6
POWER_ERROR = 3e-7  # of a factor, relative
POWERS = (1, 7, 199)
RANGES = ((200, -1.0, 1.0), (5000, -0.3, 0.9))
SHAPES = ((1, 1, 3), (150, 140, 33), (256, 128, 64))
LARGE_SHAPES = ((1000, 1500, 769), (2048, 2048, 4096))
TILE, DEPTHS, REPEATS = 8192, (256, 1024, 4096), 15
# A run in float32 and one in float64 part ways after some steps, but arrive at packings of nearly one quality.
PACKING_CELL, PACKING_STEPS, PACKING_SPREAD = (400, 32), 100, 0.02


def unit_rows(rows: int, d: int, seed: int, shift: float = 0.0) -> Tensor:
    """Random rows, all the nearer to the first axis the larger `shift` is."""
    vectors = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / d**0.5
    vectors[:, 0] += shift
    return (vectors / vectors.norm(dim=1, keepdim=True)).float()


def exact_product(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """The float64 product of rows rounded to nearest as `precision` asks for."""
    bits = SIGNIFICANT_BITS[precision]
    halves = (torch.frexp(rows.double()) for rows in (a, b))
    left, right = (torch.ldexp((fraction * 2.0**bits).round(), exponent - bits) for fraction, exponent in halves)
    return left @ right.T


def product_error(precision: str, d: int) -> float:
    """The largest error that an entry of a correct product may have."""
    return LEAST_ERROR + d * ERROR_A_TERM[precision]


def require(error: float, bound: float, what: str) -> float:
    """The error, unless it exceeds its bound or is not a number."""
    if not error <= bound:
        raise SystemExit(f"wrong result: {what} differs from float64 by {error:.3g}, more than {bound:.3g}")
    return error


def check_gram(module: ModuleType, a: Tensor, b: Tensor, precision: str, diagonal: bool) -> float:
    """Largest error of the weights over all powers, relative to the largest weight."""
    gram = exact_product(a, b, precision)
    if diagonal:
        gram.fill_diagonal_(0.0)
    scale = float(gram.abs().max()) or 1.0
    near, worst = product_error(precision, a.shape[1]), 0.0
    for power in POWERS:
        where = f"gram_power_tile {tuple(a.shape)} x {tuple(b.shape)}, {precision}, power {power}, diagonal={diagonal}"
        weights, largest, total = module.gram_power_tile(a, b, power, scale, diagonal=diagonal, precision=precision)
        quotients = gram / scale
        bound = (power + 1) * (near / scale + POWER_ERROR)
        worst = max(worst, require(float((weights - quotients**power).abs().max()), bound, f"weights of {where}"))
        require(abs(float(largest) - float(gram.abs().max())), near, f"largest entry of {where}")
        even = float((quotients ** (power + 1)).sum())
        require(abs(float(total) - even), bound * max(even, 1e-12), f"total of {where}")
    return worst


def check_cosines(module: ModuleType, a: Tensor, b: Tensor, precision: str, diagonal: bool) -> float:
    """Largest error of mean, mean square and extremes over all ranges; the counts must agree but for entries at an edge."""
    cosines = exact_product(a, b, precision)
    pairs = cosines[torch.ones_like(cosines, dtype=torch.bool).triu_(1)] if diagonal else cosines.flatten()
    ordered, near, worst = pairs.sort().values, product_error(precision, a.shape[1]), 0.0
    for bins, low, high in RANGES:
        where = f"cosine_tile {tuple(a.shape)} x {tuple(b.shape)}, {precision}, {bins} bins, diagonal={diagonal}"
        tile = module.cosine_tile(a, b, bins=bins, low=low, high=high, diagonal=diagonal, precision=precision)
        edges = torch.linspace(low, high, bins + 1, dtype=torch.float64, device=a.device)
        counted = tile.counts.cumsum(0)[:-1]
        fewest, most = torch.searchsorted(ordered, edges - near), torch.searchsorted(ordered, edges + near)
        stray = torch.maximum(fewest - counted, counted - most).clamp_(min=0).max()
        require(float(stray), 0.0, f"a cumulative count of {where}")
        require(abs(int(tile.counts.sum()) - len(pairs)), 0.0, f"the number of entries of {where}")
        if len(pairs) == 0:
            continue
        errors = {
            "mean": tile.total / len(pairs) - pairs.mean(),
            "mean square": tile.squares / len(pairs) - pairs.square().mean(),
            "minimum": tile.minimum - ordered[0],
            "maximum": tile.maximum - ordered[-1],
        }
        for name, error in errors.items():
            worst = max(worst, require(abs(float(error)), 2.0 * near, f"{name} of {where}"))
    return worst


def check_kernels(
    module: ModuleType, device: torch.device, shapes: tuple[tuple[int, int, int], ...]
) -> dict[str, float]:
    """The largest error of either kernel at each precision: random and clustered rows, full and diagonal tiles."""
    errors: dict[str, float] = {}
    for n, m, d in shapes:
        for shift in (0.0, 3.0):
            a, b = unit_rows(n, d, 0, shift).to(device), unit_rows(m, d, 1, shift).to(device)
            for precision in torch_tiles.PRECISIONS:
                for check in (check_gram, check_cosines):
                    name = f"{check.__name__.removeprefix('check_')} {precision}"
                    found = max(check(module, a, b, precision, False), check(module, a, a, precision, True))
                    errors[name] = max(errors.get(name, 0.0), found)
    return errors


def check_packing(device: torch.device) -> dict[str, float]:
    """Coherence of a small packing made on the device, its certificate and its quality held against float64 on the CPU."""
    k, d = PACKING_CELL
    reference = packing.optimise(k, d, steps=PACKING_STEPS, dtype=torch.float64)
    found = {"float64": reference.coherence}
    for precision in torch_tiles.PRECISIONS:
        result = packing.optimise(k, d, steps=PACKING_STEPS, device=device, precision=precision)
        unit = result.vectors.double().cpu()
        coherence = float((unit @ unit.T).fill_diagonal_(0.0).abs().max())
        require(abs(result.coherence - coherence), 1e-12, f"the certificate of packing {k} x {d}, {precision},")
        if precision == "ieee":
            excess = abs(coherence / reference.coherence - 1.0)
            require(excess, PACKING_SPREAD, f"the coherence of packing {k} x {d}, relatively,")
        found[precision] = coherence
    return found


def milliseconds(call: Callable[[], object]) -> float:
    """Median time of a call on the current CUDA device."""
    for _ in range(3):
        call()
    times = []
    for _ in range(REPEATS):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


@contextmanager
def product_precision(precision: str) -> Iterator[None]:
    """torch's float32 products on tensor cores for "tf32", exact otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def time_kernels(module: ModuleType, device: torch.device, deadline: float) -> list[dict[str, float | int | str]]:
    """Either kernel on square tiles: its time, how many times faster than plain torch, and its part of the bare product."""
    rows = []
    for d in DEPTHS:
        a, b = unit_rows(TILE, d, 0).to(device), unit_rows(TILE, d, 1).to(device)
        for precision in torch_tiles.PRECISIONS:
            if time.monotonic() > deadline:
                return rows
            with product_precision(precision):
                x, y = (side.bfloat16() if precision == "bf16" else side for side in (a, b))
                product = milliseconds(partial(torch.matmul, x, y.T))
                for name, arguments, options in (
                    ("gram_power_tile", (199, 0.5), {"diagonal": False}),
                    ("cosine_tile", (), {"bins": 200, "low": -1.0, "high": 1.0, "diagonal": False}),
                ):
                    fused, plain = (
                        milliseconds(partial(getattr(tiles, name), a, b, *arguments, **options, precision=precision))
                        for tiles in (module, torch_tiles)
                    )
                    rows.append(
                        {
                            "kernel": name,
                            "precision": precision,
                            "rows": TILE,
                            "d": d,
                            "milliseconds": fused,
                            "speedup_over_torch": plain / fused,
                            "fraction_of_product": product / fused,
                        }
                    )
    return rows


def published_cells() -> list[sweep.Cell]:
    """The cells of the published packing sweep, cheapest first."""
    steps = sweep.DEFAULT_STEPS[METHOD]
    return [{"method": METHOD, "k": k, "d": d, "seed": 0, "steps": steps} for k, d in sweep.published_grid()]


def fill_store(store: Path, seconds: float) -> list[dict[str, object]]:
    """The rows added to `store`: published cells that it lacks, for as long as the seconds last."""
    key = list(sweep.PACKING.key)
    before = set(sweep.read(sweep.PACKING, store)[key].itertuples(index=False, name=None))
    table = sweep.run(sweep.PACKING, published_cells(), store, budget=seconds)
    new = [row not in before for row in table[key].itertuples(index=False, name=None)]
    return json.loads(table[new].to_json(orient="records"))


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """All results, by name."""
    started = time.monotonic()
    if arguments.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined
        from repcap_utils.kernels import triton_tiles

        return {"device": "interpreter", "errors": check_kernels(triton_tiles, torch.device("cpu"), SHAPES)}
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; run this on a machine with one, or with --interpret")
    device = torch.device("cuda", torch.cuda.current_device())
    module = kernels.tiles(device)
    if module is torch_tiles:
        raise SystemExit("Triton cannot be imported here; install it (python -m pip install triton)")
    import triton

    figures: dict[str, object] = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": sweep.commit(),
        "errors": check_kernels(module, device, SHAPES + LARGE_SHAPES),
        "packing": check_packing(device),
        "times": time_kernels(module, device, started + arguments.seconds / 2),
    }
    remaining = arguments.seconds - (time.monotonic() - started)
    figures["cells"] = fill_store(arguments.store, remaining) if remaining > 0 else []
    return figures | {"seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    """Print the results as JSON; with --out also write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="start no further work after this time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument(
        "--store", type=Path, default=sweep.STORES["packing"], metavar="FILE", help="the packing store to fill"
    )
    parser.add_argument(
        "--interpret", action="store_true", help="check the kernels in Triton's interpreter, no GPU needed"
    )
    arguments = parser.parse_args()
    text = json.dumps(measure(arguments), indent=2) + "\n"
    print(text, end="")
    if arguments.out:
        write_text(arguments.out, text)


if __name__ == "__main__":
    main()
