import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from repcap_utils import cli, models, paths, sweep

runner = CliRunner()


def run(*arguments, **environment):
    """The command as a user runs it: its own process, errors and exit status included."""
    import os

    return subprocess.run(
        [sys.executable, "-m", "repcap_utils.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=paths.ROOT,
        env={**os.environ, **environment},
    )


def test_capacity_in_words_and_json():
    words = runner.invoke(cli.app, ["capacity", "--d", "4096", "--epsilon", "0.0645"])
    assert words.exit_code == 0
    assert "k/d outside the fitted data" in words.output
    facts = json.loads(runner.invoke(cli.app, ["capacity", "--d", "4096", "--epsilon", "0.0645", "--json"]).output)
    assert facts["capacity"] == pytest.approx(3.99e7, rel=2e-3)
    assert facts["capacity_low"] <= facts["capacity"] <= facts["capacity_high"]


def test_epsilon_above_one_has_no_capacity():
    output = runner.invoke(cli.app, ["capacity", "--d", "384", "--epsilon", "1.0045", "--json"]).output
    facts = json.loads(output)
    assert facts["capacity"] is None
    assert facts["flags"]
    assert "NaN" not in output
    assert "Infinity" not in output


def test_epsilon_of_a_file(tmp_path):
    generator = torch.Generator().manual_seed(0)
    save_file({"model.embed_tokens.weight": torch.randn(400, 32, generator=generator)}, tmp_path / "model.safetensors")
    facts = json.loads(runner.invoke(cli.app, ["epsilon", str(tmp_path / "model.safetensors"), "--json"]).output)
    assert facts["V"] == 400
    assert facts["pairs"] == 400 * 399 // 2
    assert facts["epsilon"] == pytest.approx(facts["random_floor"], rel=0.02)


def test_models_are_listed():
    output = runner.invoke(cli.app, ["models"]).output
    assert all(name in output for name in models.registry())
    facts = json.loads(runner.invoke(cli.app, ["models", "--json"]).output)
    assert facts["gemma-3-270m"]["hub_id"] == "google/gemma-3-270m"
    assert facts["gemma-3-270m"]["wheels"][0]["sha256"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["epsilon", "gemma-3-27m"], "gemma-3-270m"),
        (["capacity", "--d", "0", "--epsilon", "0.1"], "d"),
        (["capacity", "--d", "64", "--epsilon", "0"], "epsilon"),
        (["capacity", "--d", "64", "--epsilon", "nan"], "epsilon"),
        (["sweep", "--cells", "2000"], "k x d"),
        (["sweep", "--cells", "20x0"], "20x0"),
        (["sweep", "--cells", "20x4", "--seeds", "4-0"], "seeds"),
        (["sweep", "--cells", "20x4", "--steps", "0"], "steps = 0"),
        (["sweep", "random", "--cells", "20x4", "--draws", "1"], "draws = 1"),
        (["sweep", "--cells", "20x4", "--budget", "0"], "budget = 0"),
        (["sweep", "--profile", "huge"], "unknown sweep profile"),
        (["sweep", "--cells", "20x4", "--store", "data/models.yaml"], "has columns"),
        (["profile", "fast", "04_fitting_c"], "no profile"),
        (["models", "fetch", "nothing"], "nothing"),
    ],
)
def test_errors_are_one_line_and_not_zero(arguments, message):
    result = run(*arguments)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_sweep_of_named_cells(tmp_path, monkeypatch):
    monkeypatch.setitem(sweep.STORES, "packing", tmp_path / "packing.csv")
    result = runner.invoke(cli.app, ["sweep", "--cells", "20x4, 30 × 5", "--steps", "5"])
    assert result.exit_code == 0, result.output
    assert result.output.strip() == f"{tmp_path / 'packing.csv'}: finished 2 of 2 cells"
    table = sweep.read(sweep.PACKING, tmp_path / "packing.csv")
    assert list(table.steps) == [5, 5]
    assert list(table.method) == ["optimise-2", "optimise-2"]


def test_sweep_of_seeds_into_a_store_of_ones_own(tmp_path):
    store = tmp_path / "deep" / "random.csv"
    options = ["--cells", "20x4", "--draws", "2", "--store", str(store)]
    assert runner.invoke(cli.app, ["sweep", "random", *options, "--seeds", "1-2"]).exit_code == 0
    assert list(sweep.read(sweep.RANDOM, store).seed) == [1, 2]
    with store.open("a") as handle:
        handle.write("foreign\n")
    result = runner.invoke(cli.app, ["sweep", "random", *options, "--seeds", "0-3", "--budget", "1e-9"])
    assert "finished 2 of 4 cells, 2 remain, expected to take one worker 0 min " in result.stdout
    assert result.stderr.startswith(f"warning: {store}, line 4: 1 fields instead of 14")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "environment"),
    [(["--scheduler", "tcp:127.0.0.1"], None), ([], "tcp:127.0.0.1")],
)
def test_sweep_takes_the_scheduler_from_option_or_environment(tmp_path, option, environment):
    result = runner.invoke(
        cli.app,
        ["sweep", "--cells", "20x4", "--store", str(tmp_path / "packing.csv"), *option],
        env={"DASK_SCHEDULER_ADDRESS": environment},
    )
    assert "no dask scheduler with workers at tcp:127.0.0.1" in str(result.exception)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 min 0 s"), (61, "1 min 1 s"), (3599.6, "1 h 0 min"), (90000, "25 h 0 min")]
)
def test_durations(seconds, shown):
    assert cli._duration(seconds) == shown


@pytest.mark.parametrize(("reason", "option", "status"), [(None, [], 0), ("gone", [], 1), ("gone", ["--optional"], 0)])
def test_fetch_status(monkeypatch, reason, option, status):
    monkeypatch.setattr(models, "fetch_all", lambda names=None, progress=None: {"gemma-3-270m": reason})
    result = runner.invoke(cli.app, ["models", "fetch", *option])
    assert result.exit_code == status
    assert ("SKIPPED: gone" in result.output) == (reason is not None)


def test_reference_optional_is_a_visible_skip(tmp_path, monkeypatch):
    from repcap_utils import reference
    from repcap_utils.errors import RepcapError

    def no_network():
        raise RepcapError("cannot fetch: no network")

    monkeypatch.setenv("REPCAP_REFERENCE", str(tmp_path))
    monkeypatch.setattr(reference, "fetch", no_network)
    result = runner.invoke(cli.app, ["reference", "--optional"])
    assert result.exit_code == 0
    assert "SKIPPED" in result.output
    assert runner.invoke(cli.app, ["reference"]).exit_code != 0


def test_help_does_not_load_torch():
    code = "import sys, repcap_utils.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT).returncode == 0


def test_version():
    assert runner.invoke(cli.app, ["--version"]).output.startswith("repcap ")
