"""The Makefile's promises, with stand-ins for papermill and repcap: what runs again, what fails, what stays readable."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from repcap_utils import notebook, paths

PAPERMILL = """#!/bin/sh
for last; do previous=$this; this=$last; done
echo "$previous" >> "$CALLS"
cp "$previous" "$this"
if [ -n "$BROKEN" ] && [ "$(basename "$previous")" = "$BROKEN.ipynb" ]; then echo "ValueError: broken" >&2; exit 1; fi
"""
REPCAP = """#!/bin/sh
echo "repcap $*" >> "$CALLS.repcap"
if [ "$1" = models ] && [ -n "$OFFLINE" ]; then echo "no network"; exit 1; fi
if [ "$1" = profile ]; then echo "{}"; fi
if [ "$1" = epsilon ] && [ ! -e "$2" ]; then echo "error: no source" >&2; exit 1; fi
if [ "$1" = epsilon ]; then echo measured > "$REPCAP_OUTPUT/data/survey/epsilon.csv"; fi
"""
JUPYTER = """#!/bin/sh
for last; do :; done
cp "$last" "build/model/$(basename "$last" .ipynb).html"
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path):
    """A copy of what make looks at, and an active environment whose papermill and repcap only note their calls."""
    root = tmp_path / "clone"
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        root.mkdir(exist_ok=True)
        shutil.copy(paths.ROOT / name, root)
    for name in ("notebooks", "repcap_utils"):
        shutil.copytree(
            paths.ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        )
    for name in ("models.yaml", "published", "survey", "sweeps"):
        source, target = paths.DATA / name, root / "data" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    binaries = tmp_path / "environment" / "bin"
    binaries.mkdir(parents=True)
    for name, script in (("papermill", PAPERMILL), ("repcap", REPCAP), ("jupyter", JUPYTER)):
        (binaries / name).write_text(script)
        (binaries / name).chmod(0o755)
    (binaries / "python").symlink_to(sys.executable)
    return root


def make(root, *arguments, **environment):
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    keep |= {"VIRTUAL_ENV": str(root.parent / "environment"), "CALLS": str(root.parent / "calls"), **environment}
    ready = subprocess.run(
        ["make", "-s", "--eval=print-ready: ; @echo $(READY)", "print-ready"],
        cwd=root,
        env=keep,
        capture_output=True,
        text=True,
    )
    stamp = root / ready.stdout.strip()
    if not stamp.exists():
        stamp.touch()
        os.utime(stamp, (2**31 - 2, 2**31 - 2))
    return subprocess.run(["make", *arguments], cwd=root, env=keep, capture_output=True, text=True)


def calls(root):
    log = root.parent / "calls"
    names = (
        [line.removeprefix("notebooks/").removesuffix(".ipynb") for line in log.read_text().split()]
        if log.exists()
        else []
    )
    log.unlink(missing_ok=True)
    return names


def test_everything_runs_once_and_the_report_last(checkout):
    first = make(checkout, "all")
    assert first.returncode == 0, first.stderr
    ran = calls(checkout)
    assert sorted(ran) == list(notebook.NAMES)
    assert ran[-1] == "00_report"
    assert ran.index("01_epsilon_estimation") < min(ran.index("05_model_survey"), ran.index("06_scaling_trends"))
    assert make(checkout, "all").returncode == 0
    assert calls(checkout) == []


def test_parallel_make_runs_each_notebook_once(checkout):
    assert make(checkout, "-j2", "all").returncode == 0
    assert sorted(calls(checkout)) == list(notebook.NAMES)


def test_a_touched_module_or_another_profile_runs_them_again(checkout):
    make(checkout, "all")
    calls(checkout)
    (checkout / "repcap_utils" / "bounds.py").touch()
    assert make(checkout, "all").returncode == 0
    assert sorted(calls(checkout)) == list(notebook.NAMES)
    assert make(checkout, "all", "PROFILE=paper").returncode == 0
    assert sorted(calls(checkout)) == list(notebook.NAMES)


def test_published_sweeps_that_appear_are_noticed(checkout, tmp_path):
    make(checkout, "all")
    calls(checkout)
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "optimized_packing.json").write_text("[]")
    os.utime(tmp_path / "published" / "optimized_packing.json", (0, 0))
    assert make(checkout, "all", REPCAP_REFERENCE="../published").returncode == 0
    assert "04_fitting_c" in calls(checkout)


def test_a_failing_notebook_fails_twice_and_stays_readable(checkout):
    for _ in range(2):
        result = make(checkout, "all", BROKEN="04_fitting_c")
        assert result.returncode != 0
        assert "ValueError: broken" in result.stderr
        assert "read it in build/failed/04_fitting_c.ipynb" in result.stderr
        assert "04_fitting_c" in calls(checkout)
        assert (checkout / "build" / "failed" / "04_fitting_c.ipynb").is_file()
        assert not (checkout / "build" / "executed" / "04_fitting_c.ipynb").exists()
    assert make(checkout, "all").returncode == 0
    assert not (checkout / "build" / "failed" / "04_fitting_c.ipynb").exists()


def test_without_network_the_study_runs_and_the_models_are_tried_again(checkout):
    result = make(checkout, "all", OFFLINE="1")
    assert result.returncode == 0, result.stderr
    assert "going on with the committed statistics" in result.stdout
    assert sorted(calls(checkout)) == list(notebook.NAMES)
    make(checkout, "all")
    assert (checkout.parent / "calls.repcap").read_text().count("repcap models fetch") == 2


@pytest.mark.parametrize("arguments", [("all", "PROFILE=fast"), ("all", "PROFILE=missing.yaml")])
def test_an_unknown_profile_runs_nothing(checkout, arguments):
    result = make(checkout, *arguments)
    assert result.returncode != 0
    assert arguments[1].removeprefix("PROFILE=") in result.stderr
    assert calls(checkout) == []


def test_a_model_of_ones_own_leaves_a_report_and_the_study_alone(checkout, tmp_path):
    (tmp_path / "my model").mkdir()
    before = {path: path.read_bytes() for path in (checkout / "data").rglob("*.csv")}
    result = make(checkout, "model", "MODEL=../my model")
    assert result.returncode == 0, result.stderr
    assert calls(checkout) == ["01_epsilon_estimation"]
    folder = checkout / "build" / "model" / "my model"
    assert (checkout / "build" / "model" / "my model.html").is_file()
    assert json.loads((folder / "parameters.yaml").read_text()) == {"models": [str(tmp_path / "my model")]}
    assert (folder / "data" / "survey" / "epsilon.csv").read_text() == "measured\n"
    assert (folder / "data" / "survey" / "histograms.csv").is_file()
    assert {path: path.read_bytes() for path in (checkout / "data").rglob("*.csv")} == before


@pytest.mark.parametrize(
    ("arguments", "broken", "message"),
    [
        (("model",), "", "error: name the model"),
        (("model", "MODEL=owner/absent"), "", "error: no source"),
        (("model", "MODEL=data"), "01_epsilon_estimation", "error: the notebook failed; read it in build/model/data/"),
    ],
)
def test_a_model_that_cannot_be_measured_fails_with_a_reason(checkout, arguments, broken, message):
    result = make(checkout, *arguments, BROKEN=broken)
    assert result.returncode != 0
    assert message in result.stderr
    assert not list((checkout / "build" / "model").glob("*.html"))
