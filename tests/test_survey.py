import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hub_server import HubServer, Trouble, sharded, single
from huggingface_hub.utils import close_session
from test_hub import point

from repcap_utils import embeddings, models, paths, similarity, survey, sweep, tables
from repcap_utils.errors import RepcapError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The three stores in an empty folder."""
    for name in ("EPSILON", "HISTOGRAMS", "ISOTROPY"):
        monkeypatch.setattr(survey, name, tmp_path / getattr(survey, name).name)
    return tmp_path


@pytest.fixture
def embedding():
    weight = torch.randn(300, 24, generator=torch.Generator().manual_seed(0)) + 0.5
    return embeddings.Embedding(weight, None, None, True, "small", 24, "float32", {"file": "f", "tensor": "t"})


def test_a_row_says_what_was_measured(embedding):
    row = survey.measure(embedding)
    moments = similarity.cosine_moments(embedding.weight)
    assert (row["name"], row["V"], row["d_model"], row["tied"]) == ("small", 300, 24, "yes")
    assert row["epsilon"] == row["mean"] + 2 * row["std"] == moments.epsilon
    assert row["pairs"] == 300 * 299 // 2


def test_a_kept_model_is_in_all_three_stores(folder, embedding):
    survey.keep(embedding)
    table = survey.read(survey.EPSILON)
    assert table["mean"][0] == pytest.approx(survey.measure(embedding)["mean"], abs=1e-8)
    assert survey.read(survey.HISTOGRAMS)["count"].sum() == table.pairs[0] == 300 * 299 // 2
    assert survey.read(survey.ISOTROPY).components.tolist() == [0, 0, 1, 4, 16]
    stamps = [store.stat().st_mtime_ns for store in (survey.EPSILON, survey.HISTOGRAMS, survey.ISOTROPY)]
    survey.keep(embedding)
    assert [store.stat().st_mtime_ns for store in (survey.EPSILON, survey.HISTOGRAMS, survey.ISOTROPY)] == stamps


def test_histogram_rows_hold_every_pair(folder, embedding):
    rows = survey.histogram_rows(embedding)
    table = pd.DataFrame(rows)
    assert table["count"].sum() == 300 * 299 // 2
    assert (table["count"] > 0).all()
    assert len(survey.edges()) == survey.BINS + 1
    centres = (survey.edges()[1:] + survey.edges()[:-1]) / 2
    mean = np.average(centres[table["bin"]], weights=table["count"])
    assert mean == pytest.approx(survey.measure(embedding)["mean"], abs=0.005)


def test_isotropy_rows_start_with_the_matrix_as_it_is(folder, embedding):
    rows = survey.isotropy_rows(embedding)
    assert [(row["centred"], row["components"]) for row in rows] == [
        ("no", 0),
        ("yes", 0),
        ("yes", 1),
        ("yes", 4),
        ("yes", 16),
    ]
    assert rows[0]["epsilon"] == pytest.approx(survey.measure(embedding)["epsilon"], abs=1e-9)
    assert abs(rows[1]["mean"]) < abs(rows[0]["mean"])


def test_a_missing_store_is_named(folder):
    with pytest.raises(RepcapError, match="make survey"):
        survey.read(survey.EPSILON)


def test_committed_stores_belong_together():
    epsilon = survey.read(survey.EPSILON).set_index("name")
    counts = survey.read(survey.HISTOGRAMS).groupby("name")["count"].sum()
    as_is = survey.read(survey.ISOTROPY).query("centred == 'no'").set_index("name").epsilon
    assert set(models.registry()) <= set(counts.index) <= set(epsilon.index) == set(as_is.index)
    assert set(epsilon.index) - set(models.registry()) == set(epsilon.index[epsilon.hub_id.notna()])
    pd.testing.assert_series_equal(counts, epsilon.pairs[counts.index], check_names=False, check_like=True)
    assert np.allclose(as_is[epsilon.index], epsilon.epsilon, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "epsilon", "tolerance"),
    [
        ("gemma-3-270m", 0.4153, 2e-4),
        ("smollm2-135m", 0.7287, 3e-4),
        ("all-minilm-l6-v2", 0.2014, 2e-4),
        ("whisper-tiny.en", 1.0045, 5e-4),
    ],
)
def test_the_stored_epsilon_of_the_default_models(name, epsilon, tolerance):
    assert survey.read(survey.EPSILON).set_index("name").epsilon[name] == pytest.approx(epsilon, abs=tolerance)


@pytest.mark.parametrize("content", ["foo,bar\n1,2\n", "name,V\nsmall,3\n"])
def test_a_foreign_table_in_the_place_of_a_store_is_refused(folder, content):
    survey.EPSILON.write_text(content)
    with pytest.raises(RepcapError, match=r"epsilon.csv: no column .*not a table of this kind") as error:
        list(survey.run([]))
    assert "\n" not in str(error.value)
    assert survey.EPSILON.read_text() == content


# --- the survey: who is asked, what it takes, what is measured ----------------------------------------------------------

NAME = "model.embed_tokens.weight"


@pytest.fixture
def hub(tmp_path, monkeypatch, folder):
    """A hub with six repositories: sharded, another, pickled only, gated, and one whose server is broken."""
    with HubServer() as server:
        point(monkeypatch, server.url, tmp_path / "home")
        for seed, name in enumerate(["owner/a", "owner/b", "owner/gated", "owner/broken"]):
            server.add(name, sharded([{"first": matrix(seed)}, {NAME: matrix(seed), "last": ballast()}]))
        server.add("owner/pickled", {"pytorch_model.bin": b"x" * 1000, "config.json": b"{}"})
        server.troubles += [Trouble("models/owner/gated", 403), Trouble("models/owner/broken", 500)]
        yield server
    close_session()


def matrix(seed: int) -> torch.Tensor:
    return torch.randn(200, 24, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def ballast() -> torch.Tensor:
    return torch.zeros(100_000, 24, dtype=torch.bfloat16)


def surveyed(*names: str, **options: object) -> dict[str, survey.Outcome]:
    outcomes = list(survey.run(list(survey.preflight(survey.targets(names))), **options))
    assert len({outcome.name for outcome in outcomes}) == len(outcomes)
    return {outcome.name: outcome for outcome in outcomes}


def test_everyone_asked_is_asked_once():
    everyone = [target.name for target in survey.targets()]
    assert len(set(everyone)) == len(everyone) == 45 + len(models.registry())
    assert [target.name for target in survey.targets(hub=False)] == list(models.registry())
    assert set(tables.read(paths.PUBLISHED / "models.csv").hub_id) <= set(everyone)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("smollm2-135m", ["smollm2-135m"]),
        ("QWEN/qwen3-8b", ["Qwen/Qwen3-8B"]),
        ("phi 4", ["microsoft/phi-4"]),
        ("Gemma 3 270M", ["gemma-3-270m", "google/gemma-3-270m"]),
        ("deepseek", ["deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-ai/DeepSeek-R1"]),
        ("someone/else", ["someone/else"]),
        ("someone/else@v2", ["someone/else"]),
    ],
)
def test_a_name_stands_for_models(name, found):
    targets = survey.targets([name, name])
    assert [target.name for target in targets] == found
    assert [target.revision for target in targets] == [name.partition("@")[2] or None] * len(found)


def test_two_revisions_of_a_model_are_refused():
    assert len(survey.targets(["a/x@main", "a/x@main"])) == 1
    with pytest.raises(RepcapError, match="two revisions of a/x: main and y"):
        survey.targets(["a/x@main", "a/x@y"])
    with pytest.raises(RepcapError, match="two revisions of a/x: the default branch and y"):
        survey.targets(["a/x", "a/x@y"])


@pytest.mark.parametrize("name", ["xyzzy", "", "owner/name/more"])
def test_a_name_that_stands_for_nothing_is_refused(name):
    with pytest.raises(RepcapError, match="hub id"):
        survey.targets([name])


def test_preflight_says_what_each_model_would_take(hub):
    names = ["owner/a", "owner/pickled", "owner/gated", "owner/nowhere", "owner/broken", "owner/b"]
    checks = {check.target.name: check for check in survey.preflight(survey.targets(names))}
    assert list(checks) == names
    statuses = [check.status for check in checks.values()]
    assert statuses == ["reachable", "pickled only", "gated", "absent", "unreachable", "reachable"]
    a = checks["owner/a"]
    files = hub.repos["owner/a"].commits[a.revision]
    assert (a.bytes_to_read, a.reason) == (200 * 24 * 2, "")
    assert a.bytes_total == sum(len(files[name]) for name in files if name.endswith(".safetensors"))
    assert checks["owner/pickled"].bytes_total == 1000
    assert "--allow-download --keep" in checks["owner/pickled"].reason
    assert all(check.reason and "\n" not in check.reason for check in list(checks.values())[1:5])
    assert hub.sent < 20_000
    assert not survey.EPSILON.exists()


def test_preflight_finds_the_tensor_that_is_measured(hub):
    other = torch.randn(300, 24, generator=torch.Generator().manual_seed(8)).to(torch.bfloat16)
    hub.add("owner/wrapped", sharded([{"first": matrix(1)}, {f"thinker.{NAME}": matrix(0)}]))
    hub.add("owner/two", sharded([{NAME: matrix(0), f"draft.{NAME}": other}]))
    wrapped, two = survey.preflight(survey.targets(["owner/wrapped", "owner/two"]))
    assert (wrapped.status, wrapped.bytes_to_read, wrapped.reason) == ("reachable", 200 * 24 * 2, "")
    assert "several token embeddings of different sizes" in two.reason
    assert two.bytes_to_read is None


def test_a_hub_that_does_not_answer_is_asked_once(hub, monkeypatch, tmp_path):
    point(monkeypatch, "http://127.0.0.1:9", tmp_path / "other")
    asked = []
    real = survey._check_hub
    monkeypatch.setattr(survey, "_check_hub", lambda target: asked.append(target.name) or real(target))
    checks = list(survey.preflight(survey.targets([*models.registry(), "owner/a", "owner/b", "owner/c"])))
    assert asked == ["owner/a"]
    remote = checks[len(models.registry()) :]
    assert [check.status for check in remote] == ["unreachable", survey.NOT_ASKED, survey.NOT_ASKED]
    assert all(check.reason for check in remote)


def test_a_survey_stores_what_it_can_have_and_names_the_rest(hub):
    outcomes = surveyed("owner/a", "owner/gated", "owner/pickled", "owner/b")
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "owner/a": "measured",
        "owner/gated": "skipped",
        "owner/pickled": "skipped",
        "owner/b": "measured",
    }
    table = survey.read(survey.EPSILON).set_index("name")
    assert list(table.index) == ["owner/a", "owner/b"]
    for seed, name in enumerate(table.index):
        row = table.loc[name]
        assert row.epsilon == pytest.approx(similarity.cosine_moments(matrix(seed)).epsilon, abs=1e-7)
        assert row.epsilon == pytest.approx(outcomes[name].epsilon, abs=1e-7)
        assert (row.hub_id, row.revision) == (name, hub.repos[name].branches["main"])
        assert 200 * 24 * 2 <= row.bytes_needed < 20_000 < row.bytes_total
    assert set(survey.read(survey.ISOTROPY).name) == set(table.index)
    assert not survey.HISTOGRAMS.exists()
    assert outcomes["owner/gated"].epsilon is None
    assert outcomes["owner/gated"].reason


def test_rows_from_files_and_from_the_hub_share_a_store(hub, embedding):
    survey.keep(embedding)
    surveyed("owner/a")
    lines = survey.EPSILON.read_text().splitlines()
    fields = {line.split(",")[0]: line.split(",")[-4:] for line in lines}
    assert fields["name"] == ["hub_id", "revision", "bytes_needed", "bytes_total"]
    assert fields["small"] == [""] * 4
    assert fields["owner/a"][2].isdigit()
    assert fields["owner/a"][3].isdigit()


def test_bytes_needed_are_those_of_the_first_reading(hub):
    traffic = embeddings.load("owner/a", unembedding=False).provenance["traffic"]
    surveyed("owner/a")
    assert survey.read(survey.EPSILON).bytes_needed.tolist() == [traffic]


def test_a_store_without_the_columns_of_the_hub_gains_them(hub, embedding):
    row = survey.measure(embedding)
    old = {name: value for name, value in row.items() if name not in survey._HUB_TYPES}
    survey.EPSILON.write_text(pd.DataFrame([old]).to_csv(index=False))
    surveyed("owner/a")
    assert set(survey._HUB_TYPES) <= set(survey.read(survey.EPSILON).columns)
    assert list(survey.read(survey.EPSILON).name) == ["owner/a", "small"]


def test_a_second_survey_measures_nothing_until_the_revision_moves(hub, monkeypatch):
    surveyed("owner/a")
    epsilon, needed = survey.read(survey.EPSILON)[["epsilon", "bytes_needed"]].iloc[0]
    stamp = survey.EPSILON.stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(survey, "_measured", None)
        second = surveyed("owner/a")["owner/a"]
    assert (second.status, second.epsilon) == ("stored", epsilon)
    assert survey.EPSILON.stat().st_mtime_ns == stamp
    assert surveyed("owner/a", again=True)["owner/a"].status == "measured"
    assert survey.read(survey.EPSILON).bytes_needed[0] == needed, "also when all is cached"
    moved = hub.add("owner/a", {"model.safetensors": single({NAME: matrix(7)})})
    assert surveyed("owner/a")["owner/a"].status == "measured"
    assert survey.read(survey.EPSILON).revision[0] == moved


def test_a_model_that_lacks_one_of_its_stores_is_measured(hub):
    surveyed("owner/a", "owner/b")
    table = survey.read(survey.ISOTROPY)
    survey.ISOTROPY.write_text(table[table.name == "owner/a"].to_csv(index=False))
    outcomes = surveyed("owner/a", "owner/b")
    assert (outcomes["owner/a"].status, outcomes["owner/b"].status) == ("stored", "measured")


def test_histograms_of_the_hub_are_counted_on_request_and_go_with_their_weights(hub):
    surveyed("owner/a")
    assert surveyed("owner/a", histograms=True)["owner/a"].status == "measured"
    counted = survey.HISTOGRAMS.read_text()
    assert survey.read(survey.HISTOGRAMS)["count"].sum() == 200 * 199 // 2
    assert surveyed("owner/a", histograms=True)["owner/a"].status == "stored"
    assert surveyed("owner/a", again=True)["owner/a"].status == "measured"
    assert survey.HISTOGRAMS.read_text() == counted, "a histogram of the same weights stays"
    hub.add("owner/a", {"model.safetensors": single({NAME: matrix(7)})})
    assert surveyed("owner/a")["owner/a"].status == "measured"
    assert survey.read(survey.HISTOGRAMS).empty, "one of other weights goes"


def test_a_cached_model_needs_no_network(hub, monkeypatch):
    surveyed("owner/a")
    survey.EPSILON.unlink()
    before = hub.sent
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    checks = {check.target.name: check for check in survey.preflight(survey.targets(["owner/b", "owner/a"]))}
    assert (checks["owner/b"].status, checks["owner/a"].status) == ("unreachable", "cached")
    assert checks["owner/a"].bytes_to_read == 0
    assert surveyed("owner/a")["owner/a"].status == "measured"
    assert hub.sent == before


def test_a_network_lost_half_way_ends_the_reading(hub, monkeypatch):
    checks = list(survey.preflight(survey.targets(["owner/a", "owner/b", "owner/c"])))
    checks[2] = survey.Check(checks[2].target, "reachable", "0" * 40)
    monkeypatch.setattr(survey, "_hub_answers", lambda: False)
    hub.troubles.append(Trouble("owner/a/resolve", 404))
    outcomes = {outcome.name: outcome for outcome in survey.run(checks)}
    assert [outcome.status for outcome in outcomes.values()] == ["skipped"] * 3
    assert [outcomes[name].reason.startswith("not tried") for name in ("owner/a", "owner/b", "owner/c")] == [
        False,
        True,
        True,
    ]


def test_a_damaged_model_costs_only_itself(hub):
    hub.add("owner/a", {"model.safetensors": single({NAME: torch.full((20, 8), torch.nan)})})
    outcomes = surveyed("owner/a", "owner/b")
    assert (outcomes["owner/a"].status, outcomes["owner/b"].status) == ("skipped", "measured")
    assert "NaN" in outcomes["owner/a"].reason


def test_default_models_that_are_not_here_are_skipped_visibly(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("REPCAP_MODELS", str(tmp_path / "nothing"))
    outcomes = list(survey.run(survey.preflight(survey.targets(hub=False))))
    assert [outcome.name for outcome in outcomes] == list(models.registry())
    assert all(outcome.status == "skipped" and "repcap models fetch" in outcome.reason for outcome in outcomes)
    assert not survey.EPSILON.exists()


def test_default_models_with_committed_rows_are_not_measured_again(monkeypatch):
    monkeypatch.setattr(survey, "_measured", None)
    here = [name for name, model in models.registry().items() if model.is_present]
    if not here:
        pytest.skip("no default model is here: `make models`")
    outcomes = list(survey.run(survey.preflight(survey.targets(here))))
    assert [outcome.status for outcome in outcomes] == ["stored"] * len(here)


@pytest.mark.parametrize("workers", [0, -1])
def test_workers_are_a_positive_number(workers):
    with pytest.raises(RepcapError, match="workers"):
        list(survey.run([], workers=workers))


def test_a_scheduler_that_goes_away_keeps_what_is_measured_and_is_one_line(hub, tmp_path, monkeypatch):
    from distributed import LocalCluster

    names = [f"owner/{number}" for number in range(40)]
    for seed, name in enumerate(names):
        hub.add(name, {"model.safetensors": single({NAME: matrix(seed)})})
    checks = list(survey.preflight(survey.targets(names)))
    monkeypatch.setattr(sweep, "CONNECT_SECONDS", 3)  # how long the client looks for the scheduler when it is lost
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "worker"), "OMP_NUM_THREADS": "1"}
    one = {"n_workers": 1, "threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None}
    measured = []
    with (
        LocalCluster(**one, env=environment) as cluster,
        pytest.raises(RepcapError, match=r"lost the dask scheduler tcp://.*; finished models are stored"),
    ):
        for outcome in survey.run(checks, scheduler=cluster.scheduler_address):
            measured.append(outcome.name)
            if len(measured) == 2:
                cluster.close()
    assert 2 <= len(measured) < len(names)
    assert set(survey.read(survey.EPSILON).name) == set(measured)


WORKER = """
import os, time
from repcap_utils import survey

with survey._pool(1, None) as (executor, _):
    print(executor.submit(os.getpid).result(), flush=True)
    time.sleep(60)
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="no /proc to look processes up in")
def test_workers_end_with_a_killed_survey():
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True) as surveying:
        worker = int(surveying.stdout.readline())
        assert is_running(worker)
        surveying.kill()
    deadline = time.monotonic() + 20
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(worker)
