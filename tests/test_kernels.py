"""The fused tiles against the same thing done plainly in float64; those in Triton run in its interpreter."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from repcap_utils import kernels, packing, sweep
from repcap_utils.kernels import fused_tiles, torch_tiles
from repcap_utils.kernels.torch_tiles import PRECISIONS, cosine_tile, gram_power_tile
from repcap_utils.paths import ROOT

POWERS = (1, 7, 199, 2047)
RANGES = {"few bins": (20, -1.0, 1.0), "many bins": (5000, -0.3, 0.9)}
SIGNIFICANT_BITS = {"tf32": 11, "bf16": 8}


def unit(rows: int, d: int, seed: int, dtype: torch.dtype = torch.float64, shift: float = 0.0) -> torch.Tensor:
    vectors = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / d**0.5
    vectors[:, 0] += shift
    return (vectors / vectors.norm(dim=1, keepdim=True)).to(dtype)


BLOCKS = {
    "random": (unit(150, 33, 0), unit(140, 33, 1)),
    "clustered": (unit(200, 64, 2, shift=3.0), unit(130, 64, 3, shift=3.0)),
    "duplicated": (unit(45, 16, 4).repeat(3, 1), unit(45, 16, 4)),
    "whole blocks": (unit(128, 64, 5), unit(256, 64, 6)),
    "one row": (unit(1, 5, 7), unit(1, 5, 8)),
    "one row to many": (unit(1, 130, 9), unit(131, 130, 10)),
}
CASES = list(product(BLOCKS, (False, True), PRECISIONS))


def blocks(name: str, diagonal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (block.float() for block in BLOCKS[name])
    return (a, a) if diagonal else (a, b)


def exact_product(name: str, diagonal: bool, precision: str = "ieee") -> torch.Tensor:
    """The float64 product of the rows rounded to nearest, in the way `precision` asks for."""
    a, b = (block.double() for block in blocks(name, diagonal))
    if precision in SIGNIFICANT_BITS:
        bits = SIGNIFICANT_BITS[precision]
        a, b = (torch.ldexp((x * 2.0**bits).round(), e - bits) for x, e in (torch.frexp(a), torch.frexp(b)))
    return a @ b.T


def largest_entry(gram: torch.Tensor, diagonal: bool) -> float:
    gram = gram.abs()
    return float(gram.fill_diagonal_(0.0).max() if diagonal else gram.max()) or 1.0


def results(module: ModuleType) -> dict[tuple, tuple[torch.Tensor, ...]]:
    """All tiles of all cases."""
    found = {}
    for name, diagonal, precision in CASES:
        a, b = blocks(name, diagonal)
        options = {"diagonal": diagonal, "precision": precision}
        for power in POWERS:
            scale = largest_entry(exact_product(name, diagonal), diagonal)
            found[name, diagonal, precision, power] = module.gram_power_tile(a, b, power, scale, **options)
        for label, (bins, low, high) in RANGES.items():
            found[name, diagonal, precision, label] = tuple(
                module.cosine_tile(a, b, bins=bins, low=low, high=high, **options)
            )
    return found


# Triton decides on its interpreter when a kernel is defined, so it needs a process of its own.
INTERPRETED = """
import sys
import torch
sys.path.insert(0, "tests")
from repcap_utils.kernels import triton_tiles
from test_kernels import results
torch.save(results(triton_tiles), sys.argv[1])
"""


@pytest.fixture(scope="module", params=["torch", "triton"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict:
    if request.param == "torch":
        return results(torch_tiles)
    pytest.importorskip("triton")
    file = tmp_path_factory.mktemp("interpreted") / "results.pt"
    subprocess.run(
        [sys.executable, "-c", INTERPRETED, str(file)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )
    return torch.load(file) | {"rounds to tf32": True}


def reference(found: dict, name: str, diagonal: bool, precision: str) -> torch.Tensor:
    """What the tile should hold: plain torch computes tf32 as ieee."""
    plain = precision == "tf32" and "rounds to tf32" not in found
    return exact_product(name, diagonal, "ieee" if plain else precision)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize(("name", "diagonal", "precision"), CASES)
def test_gram_power_tile(found: dict, name: str, diagonal: bool, precision: str, power: int) -> None:
    weights, largest, total = found[name, diagonal, precision, power]
    gram = reference(found, name, diagonal, precision)
    scale = largest_entry(exact_product(name, diagonal), diagonal)
    if diagonal:
        gram.fill_diagonal_(0.0)
        assert (weights.diagonal() == 0).all()
    # Rounding of float32 grows with the power; where bfloat16 lifts entries above the scale, with their size too.
    expected = (gram / scale) ** power
    torch.testing.assert_close(weights.double(), expected, rtol=3e-7 * power, atol=1e-6 + 3e-7 * power)
    assert largest.shape == total.shape == ()
    assert float(largest) == pytest.approx(float(gram.abs().max()), abs=1e-6)
    even = float(((gram / scale) ** (power + 1)).sum())
    assert float(total) == pytest.approx(even, rel=1e-6 + 3e-7 * power, abs=1e-12)


@pytest.mark.parametrize("label", RANGES)
@pytest.mark.parametrize(("name", "diagonal", "precision"), CASES)
def test_cosine_tile(found: dict, name: str, diagonal: bool, precision: str, label: str) -> None:
    counts, total, squares, minimum, maximum = found[name, diagonal, precision, label]
    cosines = reference(found, name, diagonal, precision).numpy()
    pairs = np.sort(cosines[np.triu_indices(len(cosines), 1)] if diagonal else cosines.ravel())
    bins, low, high = RANGES[label]
    assert counts.dtype == torch.int64
    assert counts.shape == (bins + 2,)
    assert counts.sum() == len(pairs)
    edges = np.linspace(low, high, bins + 1)
    cumulative = counts.cumsum(0).numpy()[:-1]
    assert (cumulative >= np.searchsorted(pairs, edges - 1e-6)).all()
    assert (cumulative <= np.searchsorted(pairs, edges + 1e-6)).all()
    assert total.dtype == squares.dtype == torch.float64
    assert float(total) == pytest.approx(pairs.sum(), abs=1e-14 + 1e-7 * len(pairs))
    assert float(squares) == pytest.approx(np.square(pairs).sum(), abs=1e-14 + 1e-7 * len(pairs))
    assert float(minimum) == pytest.approx(pairs.min(initial=np.inf), abs=1e-6)
    assert float(maximum) == pytest.approx(pairs.max(initial=-np.inf), abs=1e-6)


@pytest.mark.parametrize(("precision", "bound"), [("ieee", 1e-6), ("tf32", 2.0**-10), ("bf16", 2.0**-7)])
@pytest.mark.parametrize("name", ["random", "clustered", "whole blocks"])
def test_a_product_is_as_near_as_its_precision_promises(found: dict, name: str, precision: str, bound: float) -> None:
    weights, *_ = found[name, False, precision, 1]
    gram = exact_product(name, False)
    error = float((weights.double() * largest_entry(gram, False) - gram).abs().max())
    assert error < bound
    rounds = precision == "bf16" or (precision == "tf32" and "rounds to tf32" in found)
    assert (error > 1e-5) == rounds


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("diagonal", [False, True])
def test_powers_in_float64(power: int, diagonal: bool) -> None:
    a = unit(37, 6, 0)
    b = a if diagonal else unit(41, 6, 1)
    gram = a @ b.T
    if diagonal:
        gram.fill_diagonal_(0.0)
    weights, largest, total = gram_power_tile(a, b, power, 0.99, diagonal=diagonal)
    torch.testing.assert_close(weights, (gram / 0.99) ** power, rtol=1e-12, atol=1e-14)
    assert float(largest) == pytest.approx(float(gram.abs().max()), abs=1e-14)
    assert float(total) == pytest.approx(float(((gram / 0.99) ** (power + 1)).sum()), rel=1e-11)


@pytest.mark.parametrize("bins", [1, 7, 253, 254, 1000, 100_000])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.3, 0.25), (0.4, 0.9)])
def test_counts_equal_a_plain_histogram(bins: int, low: float, high: float) -> None:
    a, b = unit(61, 5, 0), unit(83, 5, 1)
    cosines = (a @ b.T).numpy()
    counts = cosine_tile(a, b, bins=bins, low=low, high=high, diagonal=False).counts.numpy()
    assert counts[0] == (cosines < low).sum()
    assert counts[-1] == (cosines > high).sum()
    np.testing.assert_array_equal(counts[1:-1], np.histogram(cosines, bins, (low, high))[0])


@pytest.mark.parametrize("bins", [10, 300])
def test_a_diagonal_tile_counts_each_pair_once(bins: int) -> None:
    a = unit(70, 6, 2)
    cosines = (a @ a.T).numpy()[np.triu_indices(70, 1)]
    tile = cosine_tile(a, a, bins=bins, low=-0.5, high=0.5, diagonal=True)
    counts = tile.counts.numpy()
    assert counts.sum() == 70 * 69 // 2
    np.testing.assert_array_equal(counts[1:-1], np.histogram(cosines, bins, (-0.5, 0.5))[0])
    assert float(tile.total) == pytest.approx(cosines.sum(), abs=1e-10)
    assert float(tile.squares) == pytest.approx(np.square(cosines).sum(), rel=1e-12)
    assert (float(tile.minimum), float(tile.maximum)) == pytest.approx((cosines.min(), cosines.max()), abs=1e-14)


def test_ends_are_closed_below_and_open_above() -> None:
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert cosine_tile(a, b, bins=2, low=-1.0, high=1.0, diagonal=False).counts.tolist() == [0, 1, 1, 1]
    assert cosine_tile(a, b, bins=1, low=0.0, high=0.5, diagonal=False).counts.tolist() == [1, 1, 1]


def tile_modules() -> list[ModuleType]:
    return [torch_tiles, pytest.importorskip("repcap_utils.kernels.triton_tiles", exc_type=ImportError)]


@pytest.mark.parametrize("power", [0, -1, 2, 200])
def test_a_power_that_loses_the_sign_is_refused(power: int) -> None:
    a = unit(3, 2, 0)
    for module in tile_modules():
        with pytest.raises(ValueError, match=f"power is {power};"):
            module.gram_power_tile(a, a, power, 1.0, diagonal=True)


def test_an_unknown_precision_is_refused() -> None:
    a = unit(3, 2, 0)
    for module in tile_modules():
        with pytest.raises(ValueError, match="precision is 'fp8'; use one of ieee, tf32, bf16"):
            module.gram_power_tile(a, a, 3, 1.0, diagonal=True, precision="fp8")
        with pytest.raises(ValueError, match="precision is 'fp8'"):
            module.cosine_tile(a, a, bins=3, low=-1.0, high=1.0, diagonal=True, precision="fp8")


def test_float64_rows_stay_float64_in_both_modules() -> None:
    a, b = unit(30, 4, 0), unit(20, 4, 1)
    for module in tile_modules():
        weights, *_ = module.gram_power_tile(a, b, 3, 1.0, diagonal=False)
        torch.testing.assert_close(weights, (a @ b.T) ** 3, rtol=1e-13, atol=1e-15)
        tile = module.cosine_tile(a, b, bins=4, low=-1.0, high=1.0, diagonal=False)
        assert float(tile.maximum) == float((a @ b.T).max())


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_left_alone(dtype: torch.dtype, precision: str, diagonal: bool) -> None:
    a = unit(30, 4, 0, dtype)
    kept = a.clone()
    for power in (1, 5):
        gram_power_tile(a, a, power, 1.0, diagonal=diagonal, precision=precision)
    cosine_tile(a, a, bins=4, low=-1.0, high=1.0, diagonal=diagonal, precision=precision)
    assert torch.equal(a, kept)


@pytest.fixture
def compiler() -> None:
    if not fused_tiles.compiles():
        pytest.skip("torch.compile finds no C++ compiler")


FULL = {
    "random": (unit(512, 33, 0), unit(512, 33, 1)),
    "clustered": (unit(512, 64, 2, shift=3.0), unit(512, 64, 3, shift=3.0)),
    "duplicated": (unit(64, 16, 4).repeat(8, 1), unit(512, 16, 4)),
}


@pytest.mark.parametrize("power", [1, 7, 127, 449, 8387])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("name", FULL)
def test_the_compiled_tile(compiler, name: str, diagonal: bool, power: int) -> None:
    a, b = (block.float() for block in FULL[name])
    b = a if diagonal else b
    scale = largest_entry((a @ b.T).double(), diagonal)
    kept = a.clone()
    weights, largest, total = fused_tiles.gram_power_tile(a, b, power, scale, diagonal=diagonal)
    plain = gram_power_tile(a, b, power, scale, diagonal=diagonal)
    assert weights.isfinite().all()
    for found, expected in zip((weights, largest, total), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-30)
    assert torch.equal(a, kept)


@pytest.mark.parametrize("rows", [(512, 511), (100, 512), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ragged_tiles_are_those_of_torch(rows: tuple[int, int], dtype: torch.dtype) -> None:
    a, b = unit(rows[0], 20, 0, dtype), unit(rows[1], 20, 1, dtype)
    found, plain = (
        module.gram_power_tile(a, b, 31, 0.7, diagonal=False, precision="bf16") for module in (fused_tiles, torch_tiles)
    )
    assert all(torch.equal(*pair) for pair in zip(found, plain, strict=True))


@pytest.mark.parametrize(("power", "precision"), [(4, "ieee"), (3, "fp8")])
def test_the_compiled_tile_refuses_what_torch_refuses(power: int, precision: str) -> None:
    rows = unit(512, 8, 0, torch.float32)
    with pytest.raises(ValueError, match=r"must be odd|use one of"):
        fused_tiles.gram_power_tile(rows, rows, power, 1.0, diagonal=True, precision=precision)


def test_a_run_with_compiled_tiles_is_the_same_run(compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = packing.optimise(600, 8, seed=0, steps=40)
    calls = []
    monkeypatch.setattr(kernels, "COMPILING_PAYS", 0)
    compiled = fused_tiles._fused
    monkeypatch.setattr(fused_tiles, "_fused", lambda *tile: calls.append(tile) or compiled(*tile))
    fused = packing.optimise(600, 8, seed=0, steps=40)
    assert len(calls) >= 40  # the one whole tile of 600 rows, at each step
    assert fused.coherence == pytest.approx(plain.coherence, rel=1e-5)


WITHOUT_COMPILER = """
import torch
from repcap_utils import packing
from repcap_utils.kernels import fused_tiles, torch_tiles
rows = packing.random_unit_vectors(512, 8, 0).float()
found, plain = (m.gram_power_tile(rows, rows, 9, 1.0, diagonal=True) for m in (fused_tiles, torch_tiles))
assert not fused_tiles.compiles()
assert all(torch.equal(*pair) for pair in zip(found, plain, strict=True))
"""


def test_without_a_compiler_tiles_are_those_of_torch(tmp_path: Path) -> None:
    environment = os.environ | {"CXX": str(tmp_path / "none"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.fixture
def dispatch():
    kernels._cuda_tiles.cache_clear()
    yield kernels.tiles
    kernels._cuda_tiles.cache_clear()


@pytest.mark.parametrize(("entries", "module"), [(0, torch_tiles), (4.9e10, torch_tiles), (5e10, fused_tiles)])
def test_the_cpu_takes_torch_and_compiles_for_long_runs(dispatch, entries: float, module: ModuleType) -> None:
    assert dispatch(torch.device("cpu"), entries) is module


def test_cuda_takes_triton(dispatch) -> None:
    pytest.importorskip("triton")
    assert dispatch(torch.device("cuda")).__name__ == "repcap_utils.kernels.triton_tiles"


def test_cuda_without_triton_takes_torch(dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "repcap_utils.kernels.triton_tiles", raising=False)
    monkeypatch.delattr(kernels, "triton_tiles", raising=False)
    assert dispatch(torch.device("cuda", 0)) is torch_tiles


TENSOR_CORE = {80: "mma.sync", 90: "wgmma", 100: "tcgen05"}
TYPES = {"counts": "*i64", **dict.fromkeys(("n", "m", "d", "power", "bins"), "i32")}
TYPES |= dict.fromkeys(("inverse", "width", "offset"), "fp32")
COMPILED = [("gram_power_kernel", arch, precision, {}) for arch in TENSOR_CORE for precision in PRECISIONS] + [
    ("cosine_kernel", 80, "ieee", {"SLOTS": 0}),
    ("cosine_kernel", 80, "tf32", {"SLOTS": 256}),
    ("cosine_kernel", 90, "tf32", {"SLOTS": 0}),
    ("cosine_kernel", 90, "bf16", {"SLOTS": 256}),
    ("cosine_kernel", 100, "bf16", {"SLOTS": 0}),
    ("cosine_kernel", 100, "ieee", {"SLOTS": 256}),
]


def compiled(name: str, arch: int, precision: str, sizes: dict[str, int], *, diagonal: bool = True):
    """A kernel as a launch would compile it; `sizes` are constants: SLOTS, and arguments that Triton fixes when 1."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from repcap_utils.kernels import triton_tiles

    kernel = getattr(triton_tiles, name)
    launch = dict(triton_tiles.LAUNCH[precision])
    options = {key: launch.pop(key) for key in ("num_warps", "num_stages")}
    constants = {**triton_tiles.constants(precision, diagonal=diagonal), **launch, **sizes}
    rows = "*bf16" if precision == "bf16" else "*fp32"
    types = {**TYPES, "a": rows, "b": rows, **dict.fromkeys(constants, "constexpr")}
    signature = {argument: types.get(argument, "*fp32") for argument in kernel.arg_names}
    # as at a launch with torch's aligned memory and a width that is a multiple of 16
    aligned = [
        i for i, (argument, kind) in enumerate(signature.items()) if kind[0] == "*" or (argument, kind) == ("d", "i32")
    ]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


@pytest.mark.parametrize(("name", "arch", "precision", "sizes"), COMPILED)
def test_kernels_compile_ahead_of_time(
    name: str, arch: int, precision: str, sizes: dict[str, int], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    built = compiled(name, arch, precision, sizes)
    assert len(built.asm["cubin"]) > 1000
    assert f".target sm_{arch}" in built.asm["ptx"]
    assert (TENSOR_CORE[arch] in built.asm["ptx"]) == (precision != "ieee")
    assert built.metadata.shared <= 163 * 1024, "more shared memory than a program has on sm_80"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gram_power_kernel", {"n": 1, "m": 1, "d": 1}),
        ("cosine_kernel", {"SLOTS": 32, "n": 1, "m": 1, "d": 1, "bins": 1}),
    ],
)
def test_sizes_of_one_compile(name: str, sizes: dict[str, int], tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert ".target sm_90" in compiled(name, 90, "tf32", sizes, diagonal=False).asm["ptx"]


def test_a_new_power_is_no_new_kernel() -> None:
    triton_tiles = pytest.importorskip("repcap_utils.kernels.triton_tiles", exc_type=ImportError)
    power = triton_tiles.gram_power_kernel.params[triton_tiles.gram_power_kernel.arg_names.index("power")]
    assert power.do_not_specialize
    assert not power.is_constexpr


BENCHMARK = ROOT / "benchmarks" / "gpu.py"


def benchmark(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(BENCHMARK), *arguments]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True)


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    """benchmarks/gpu.py as a module."""
    spec = importlib.util.spec_from_file_location("gpu", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_needs_a_gpu() -> None:
    done = benchmark()
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "no CUDA device here; run this on a machine with one, or with --interpret\n"


def test_the_benchmark_checks_the_kernels_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = benchmark("--interpret", "--out", str(tmp_path / "results.json"))
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "results.json").read_text())
    assert json.loads(done.stdout) == figures
    assert set(figures["errors"]) == {f"{kernel} {name}" for kernel in ("gram", "cosines") for name in PRECISIONS}
    assert all(0 < error < 1e-3 for error in figures["errors"].values())


SPOILED_WEIGHTS = {
    "weights": lambda weights, largest, total: (weights * 1.001, largest, total),
    "largest entry": lambda weights, largest, total: (weights, largest + 1e-4, total),
    "total": lambda weights, largest, total: (weights, largest, total * 1.01),
}
SPOILED_COSINES = {
    "cumulative count": lambda tile: tile._replace(counts=tile.counts.roll(1)),
    "number of entries": lambda tile: tile._replace(counts=torch.cat([tile.counts[:-1], tile.counts[-1:] + 1])),
    "mean": lambda tile: tile._replace(total=tile.total + 1.0),
    "mean square": lambda tile: tile._replace(squares=tile.squares * 1.01),
    "minimum": lambda tile: tile._replace(minimum=tile.minimum - 1e-3),
    "maximum": lambda tile: tile._replace(maximum=tile.maximum * torch.nan),
}
WRONG = r"wrong result: .*{} of .* differs from float64 by .*, more than"


@pytest.mark.parametrize("what", SPOILED_WEIGHTS)
def test_the_benchmark_finds_wrong_weights(gpu: ModuleType, what: str) -> None:
    a, b = unit(90, 12, 0).float(), unit(80, 12, 1).float()
    gpu.check_gram(torch_tiles, a, b, "ieee", False)
    spoiled = SimpleNamespace(gram_power_tile=lambda *args, **kw: SPOILED_WEIGHTS[what](*gram_power_tile(*args, **kw)))
    with pytest.raises(SystemExit, match=WRONG.format(what)):
        gpu.check_gram(spoiled, a, b, "ieee", False)


@pytest.mark.parametrize("what", SPOILED_COSINES)
def test_the_benchmark_finds_wrong_cosines(gpu: ModuleType, what: str) -> None:
    a, b = unit(90, 12, 0).float(), unit(80, 12, 1).float()
    gpu.check_cosines(torch_tiles, a, b, "ieee", False)
    spoiled = SimpleNamespace(cosine_tile=lambda *args, **kw: SPOILED_COSINES[what](cosine_tile(*args, **kw)))
    with pytest.raises(SystemExit, match=WRONG.format(what)):
        gpu.check_cosines(spoiled, a, b, "ieee", False)


def test_the_benchmark_checks_a_packing(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpu.check_packing(torch.device("cpu"))
    assert set(found) == {"float64", *PRECISIONS}
    optimise = packing.optimise
    monkeypatch.setattr(packing, "optimise", lambda *size, **kw: replace(optimise(*size, **kw), coherence=0.2))
    with pytest.raises(SystemExit, match="wrong result: the certificate of packing 400 x 32, ieee"):
        gpu.check_packing(torch.device("cpu"))


def test_the_benchmark_fills_only_what_the_store_lacks(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "published_grid", lambda: [(12, 4), (14, 4)])
    store = tmp_path / "packing.csv"
    sweep.run(sweep.PACKING, gpu.published_cells()[:1], store)
    added = gpu.fill_store(store, 60.0)
    assert [(row["method"], row["k"], row["d"], row["seed"]) for row in added] == [(gpu.METHOD, 14, 4, 0)]
    assert gpu.fill_store(store, 60.0) == []
