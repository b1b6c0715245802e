import json
import subprocess
import sys

import pytest
import torch
from hub_server import HubServer, sharded
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from repcap_utils import bounds, cli, linear_access, models, paths, survey, sweep
from repcap_utils.similarity import cosine_moments

runner = CliRunner()
TENSOR = "model.embed_tokens.weight"


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


def test_bounds_in_words_and_json():
    arguments = ["bounds", "--d", "4096", "--epsilon", "0.0645"]
    words = runner.invoke(cli.app, arguments)
    assert words.exit_code == 0
    for line in (
        "  exist at least  35,184,372,092,928  Delsarte-Goethals (m = 12, r = 2), coherence 0.0625",
        "                  Delsarte and Goethals, J. Combin. Theory A 19 (1975)",
        "  cannot exceed   10^23.33  Levenshtein, degree 7",
        "                  Levenshtein, Acta Appl. Math. 29 (1992)",
        "  published form full           10^7.60",
        "  Rankin's bound                no bound here",
    ):
        assert line in words.output.splitlines()
    facts = json.loads(runner.invoke(cli.app, [*arguments, "--json"]).output)
    assert facts["lower"]["lines"] == 35184372092928
    assert facts["upper"]["lines"] is None
    assert 10 ** facts["upper"]["log10"] == pytest.approx(2.1e23, rel=4e-3)
    assert facts["lower"]["log10"] <= facts["upper"]["log10"] < facts["log10_others"]["Sidelnikov's bound, power 23"]
    assert facts["log10_others"]["Rankin's bound"] is None


@pytest.mark.parametrize(
    ("d", "epsilon", "words"), [("1", "0.5", "d = 1"), ("64", "1", "epsilon = 1"), ("64", "0", "epsilon = 0")]
)
def test_bounds_of_nothing_are_refused(d, epsilon, words):
    result = runner.invoke(cli.app, ["bounds", "--d", d, "--epsilon", epsilon])
    assert result.exit_code == 1
    assert words in str(result.exception)


def test_epsilon_above_one_has_no_capacity():
    output = runner.invoke(cli.app, ["capacity", "--d", "384", "--epsilon", "1.0045", "--json"]).output
    facts = json.loads(output)
    assert facts["capacity"] is None
    assert facts["bracket"] is None
    assert facts["flags"]
    assert "NaN" not in output
    assert "Infinity" not in output


def model_file(folder, rows=400, d=32, **heads):
    """A small safetensors file with a zero row, a repeated row and the heads asked for; and its embedding."""
    weight = torch.randn(rows, d, generator=torch.Generator().manual_seed(0))
    weight[7], weight[9] = 0.0, weight[3]
    tensors = {f"{name}.weight": -weight if other else weight.clone() for name, other in heads.items()}
    save_file({"model.embed_tokens.weight": weight} | tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def epsilon_json(*arguments):
    result = runner.invoke(cli.app, ["epsilon", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output + str(result.exception)
    assert "NaN" not in result.output
    assert "Infinity" not in result.output
    return json.loads(result.output)


def test_epsilon_of_a_file(tmp_path):
    facts = epsilon_json(model_file(tmp_path))
    assert (facts["V"], facts["d_model"], facts["storage"]) == (400, 32, "float32")
    assert facts["pairs"] == 399 * 398 // 2
    assert facts["epsilon"] == pytest.approx(facts["random_floor"], rel=0.05)
    assert facts["epsilon"] == pytest.approx(facts["mean"] + 2 * facts["std"])
    assert (facts["zero_rows"], facts["duplicate_rows"], facts["class"]) == (1, 1, 1)
    assert (facts["tied"], facts["head"], facts["tokenizer"]) == (True, "absent", "none beside the weights")
    assert [step["components"] for step in facts["without_common_directions"]] == [0]
    assert set(facts["log10_by_form"]) == {"full", "ratio", "jl", "jl_random", "jl_proven"}
    assert facts["capacity_low"] <= facts["capacity"] <= facts["capacity_high"]
    assert facts["bracket"] == bounds.bracket(32, facts["epsilon"])._asdict()
    assert facts["rows"]["zero"] == {"count": 1, "rows": [7], "tokens": None}
    assert facts["rows"]["duplicate"]["rows"] == [9]
    assert facts["rows"]["flagged"]["rows"] == [7, 9]
    assert facts["epsilon_without_flagged_rows"] != facts["epsilon"]
    assert "unembedding" not in facts


def test_a_profile_removes_principal_components_too(tmp_path):
    facts = epsilon_json(model_file(tmp_path), "--profile")
    assert [step["components"] for step in facts["without_common_directions"]] == [0, 1, 4, 16]
    text = runner.invoke(cli.app, ["epsilon", str(tmp_path), "--profile"]).output
    assert "and 16 principal components  0." in text


def test_epsilon_in_words(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"t{row}\n" for row in range(390)))
    text = runner.invoke(cli.app, ["epsilon", str(model_file(tmp_path, lm_head=False))]).output
    for line in (
        "  read from  safetensors model.safetensors, tensor model.embed_tokens.weight",
        "  head       tied: a head is stored, and equal in value",
        "  V x d_model         400 x 32",
        "  zero                     1 (7 't7')",
        "  beyond the tokenizer     10 (390 '<row 390>', 391",
        "  full            10^",
        "  exist at least  ",
        "  cannot exceed   ",
    ):
        assert line in text
    assert "nan" not in text


def test_the_unembedding_is_measured_on_request(tmp_path):
    facts = epsilon_json(model_file(tmp_path, lm_head=True), "--unembedding")
    assert (facts["tied"], facts["head"]) == (False, "different")
    assert facts["unembedding"]["epsilon"] == pytest.approx(facts["epsilon"])
    assert {"V", "d_model", "capacity", "rows", "nearest_published"} <= set(facts["unembedding"])
    assert "unembedding: epsilon of all" in runner.invoke(cli.app, ["epsilon", str(tmp_path), "--unembedding"]).output


@pytest.mark.parametrize(
    ("heads", "reason"), [({}, "no head is stored"), ({"lm_head": False}, "a head is stored, and equal in value")]
)
def test_a_tied_model_has_no_unembedding_to_measure(tmp_path, heads, reason):
    result = runner.invoke(cli.app, ["epsilon", str(model_file(tmp_path, **heads)), "--unembedding"])
    assert result.exit_code == 1
    assert reason in str(result.exception)


def test_a_damaged_tokenizer_does_not_stop_epsilon(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    facts = epsilon_json(model_file(tmp_path))
    assert "tokenizer.json: not a vocabulary" in facts["tokenizer"]
    assert (facts["rows"]["padded"], facts["padding_told_by"]) == (None, None)
    assert "  unknown (tokenizer not read)" in runner.invoke(cli.app, ["epsilon", str(tmp_path)]).output


def test_epsilon_of_equal_rows_has_nothing_to_remove(tmp_path):
    save_file({"wte.weight": torch.ones(40, 8)}, tmp_path / "model.safetensors")
    facts = epsilon_json(tmp_path)
    assert (facts["epsilon"], facts["without_common_directions"]) == (pytest.approx(1.0), [])
    assert "nothing  is left" in runner.invoke(cli.app, ["epsilon", str(tmp_path)]).output


def test_a_hub_model_costs_its_embedding_and_little_more(tmp_path):
    generator = torch.Generator().manual_seed(0)
    weight, head, other = (torch.randn(20000, 64, generator=generator).bfloat16() for _ in range(3))
    shards = [{"a.weight": other}, {"model.embed_tokens.weight": weight, "b.weight": other}, {"lm_head.weight": head}]
    config = {"vocab_size": 19990, "hidden_size": 64, "tie_word_embeddings": True}
    vocabulary = {f"token {i}": i for i in range(19990)}
    files = {"config.json": json.dumps(config).encode(), "vocab.json": json.dumps(vocabulary).encode()}
    with HubServer() as server:
        commit = server.add("owner/name", files | sharded(shards))
        environment = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        environment |= {"HF_HUB_OFFLINE": "0", "HF_TOKEN": ""}
        environment |= {"HF_ASSETS_CACHE": str(tmp_path / "assets"), "HF_HUB_CACHE": str(tmp_path / "hub")}
        result = run("epsilon", "owner/name", "--revision", "main", "--json", **environment)
        assert result.returncode == 0, result.stderr
        facts = json.loads(result.stdout)
        assert server.sent <= weight.nbytes + 2**20
        assert (facts["revision"], facts["head"], facts["tied"], facts["storage"]) == (
            commit,
            "different",
            False,
            "bfloat16",
        )
        assert weight.nbytes < facts["traffic"] <= weight.nbytes + 2**20
        assert facts["total_bytes"] > 4 * weight.nbytes
        assert facts["epsilon"] == pytest.approx(cosine_moments(weight).epsilon, abs=1e-9)
        assert "--tokens" in facts["tokenizer"]
        assert (facts["rows"]["padded"]["count"], facts["rows"]["padded"]["tokens"]) == (10, None)
        before = server.sent
        named = run("epsilon", "owner/name", "--tokens", **environment)
        assert f"  revision   {commit}" in named.stdout
        assert "10 (19990 '<row 19990>'" in named.stdout
        assert server.sent < before + 2**20, "the tensor is read once"
        absent = run("epsilon", "owner/other", **environment)
        assert (absent.returncode, len(absent.stderr.strip().splitlines())) == (1, 1)
        assert absent.stderr.startswith("error: owner/other")


def test_kept_figures_go_to_the_output_folder(tmp_path):
    path = model_file(tmp_path)
    result = run("epsilon", str(path), "--keep", REPCAP_OUTPUT=str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    stores = tmp_path / "out" / "data" / "survey"
    assert {store.name for store in stores.glob("*.csv")} == {"epsilon.csv", "histograms.csv", "isotropy.csv"}
    assert (stores / "epsilon.csv").read_text().splitlines()[1].startswith(f"{tmp_path.name},400,32,")


def test_access_needs_no_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    path = model_file(tmp_path)
    (path.parent / "vocab.txt").write_text("")
    facts = json.loads(runner.invoke(cli.app, ["access", str(path), "--k-max", "2", "--json"]).output)
    assert facts["signed"]["worst_tokens"] is None
    assert len(facts["signed"]["errors"]) == 2


def test_access_of_a_file(tmp_path, monkeypatch):
    path = model_file(tmp_path)
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.setattr(linear_access, "STORE", tmp_path / "linear_access.csv")
    monkeypatch.setattr(linear_access, "TOKENS", tmp_path / "linear_access_tokens.csv")
    arguments = ["access", str(path), "--error", "0.9", "--k-max", "4", "--centre", "--components", "2"]
    facts = json.loads(runner.invoke(cli.app, [*arguments, "--json"]).output)
    found = linear_access.embedding_interference(load_file(path)[TENSOR], 4, centre=True, components=2)
    assert (facts["V"], facts["d_model"], facts["zero_rows"]) == (400, 32, 1)
    for inputs in linear_access.INPUTS:
        worst = [found.worst_case(k, inputs) for k in range(1, 5)]
        assert facts[inputs]["errors"] == pytest.approx([case.error for case in worst], abs=1e-6)
        assert facts[inputs]["usable_sparsity"] == found.usable_sparsity(0.9, inputs).min()
        assert facts[inputs]["share_below"][0] == pytest.approx((found.errors(1, inputs) < 0.9).mean())
    blocks, save = [], linear_access._State.save
    monkeypatch.setattr(linear_access._State, "save", lambda *state: blocks.append(1) or save(*state))
    words = runner.invoke(cli.app, [*arguments, "--keep"])
    assert words.exit_code == 0, words.output
    assert len(blocks) == 1, "all rows are one block, and what is kept is computed once"
    assert "the mean row and 2 principal components" in words.output
    assert f"{facts['signed']['errors'][3]:.5f}" in words.output
    assert len(list((tmp_path / "build" / "access").glob("*-4.npz"))) == 1
    assert runner.invoke(cli.app, [*arguments[:5], "3", *arguments[6:]]).exit_code == 0
    assert len(blocks) == 1, "the finished state serves a smaller k too"
    kept = linear_access.STORE.read_text().splitlines()
    assert len(kept) == 1 + 2 * 16
    assert kept[1].startswith(f"{tmp_path.name},yes,2,400,32,1,signed,1,")


@pytest.mark.parametrize("name", models.registry())
def test_epsilon_of_a_default_model(name):
    if not models.get(name).is_present:
        pytest.skip(f"{name} is not on this machine; run `repcap models fetch {name}`")
    facts = epsilon_json(name)
    row = survey.read(survey.EPSILON).set_index("name").loc[name]
    assert (facts["V"], facts["d_model"], facts["storage"], facts["pairs"]) == (
        row.V,
        row.d_model,
        row.storage,
        row.pairs,
    )
    assert (facts["mean"], facts["std"], facts["epsilon"]) == pytest.approx(
        (row["mean"], row["std"], row.epsilon), abs=1e-6
    )
    centred = (
        survey.read(survey.ISOTROPY).query("name == @name and centred == 'yes' and components == 0").epsilon.item()
    )
    assert facts["without_common_directions"] == [{"components": 0, "epsilon": pytest.approx(centred, abs=1e-6)}]
    assert facts["tied"] is {"yes": True, "no": False, "unknown": None}[row.tied]
    assert (facts["capacity"] is None) == (row.epsilon >= 1)
    published = models.get(name).published_epsilon
    assert published is None or facts["epsilon"] == pytest.approx(published, abs=5e-4)


@pytest.fixture
def small_hub(tmp_path):
    """A hub with two small models, and the environment of a command that asks it."""
    weights = {"model.embed_tokens.weight": torch.randn(300, 16, generator=torch.Generator().manual_seed(1))}
    with HubServer() as server:
        for name in ("owner/one", "owner/two"):
            server.add(name, sharded([weights, {"rest": torch.zeros(50000, 16)}]))
        yield {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "REPCAP_OUTPUT": str(tmp_path / "out")}


@pytest.mark.parametrize("pool", [["--workers", "2"], ["--scheduler", "local"]])
def test_a_survey_by_a_pool(tmp_path, small_hub, pool):
    result = run("survey", "owner/one", "owner/none", "owner/two", *pool, **small_hub)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[1].split()[:2] == ["owner/one", "reachable"]
    assert lines[2].split()[:2] == ["owner/none", "absent"]
    assert {line.split()[0] for line in lines if ": epsilon 0." in line} == {"owner/one:", "owner/two:"}
    assert lines[-1].endswith("2 of 3 models; missing 1: owner/none")
    stored = (tmp_path / "out" / "data" / "survey" / "epsilon.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in stored] == ["name", "owner/one", "owner/two"]


def test_a_preflight_only_looks(tmp_path, small_hub):
    result = run("survey", "owner/one", "owner/none", "--preflight", "--json", **small_hub)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert set(facts) == {"preflight"}
    one, none = facts["preflight"]
    assert (one["status"], one["bytes_to_read"], none["status"]) == ("reachable", 300 * 16 * 4, "absent")
    assert one["bytes_total"] > 3e6
    assert not (tmp_path / "out").exists()


@pytest.fixture
def no_network(tmp_path):
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "REPCAP_OUTPUT": str(tmp_path)}
    return environment | {"REPCAP_MODELS": str(tmp_path / "none"), "HF_HUB_OFFLINE": "0"}


def test_a_survey_without_a_network_finds_that_out_once_and_ends_well(no_network):
    result = run("survey", **no_network)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[1] for line in lines[1:6]] == ["absent"] * 4 + ["unreachable"]
    assert lines[6] == "not asked: 44 models, because the hub did not answer; check the network and HF_ENDPOINT"
    assert sum("SKIPPED" in line for line in lines) == 5
    assert "0 of 49 models; missing 49: gemma-3-270m" in lines[-1]


def test_a_survey_without_a_network_as_json_names_every_model(no_network):
    facts = json.loads(run("survey", "--json", **no_network).stdout)
    assert len(facts["missing"]) == len(facts["models"]) == 45 + len(models.registry())
    assert {check["status"] for check in facts["preflight"]} == {"absent", "unreachable", "not asked"}


def test_a_local_survey_asks_no_hub(no_network):
    result = run("survey", "--local", **no_network)
    assert result.returncode == 0, result.stderr
    assert f"0 of {len(models.registry())} models" in result.stdout
    assert "hub" not in result.stdout


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
        (["epsilon", "data"], "holds no weights"),
        (["survey", "nonsense"], "no model 'nonsense'"),
        (["survey", "--local", "llama"], "--local is for a survey without names"),
        (["epsilon", "README.md"], "unknown kind of file"),
        (["epsilon", "README.md", "--revision", "main"], "only a hub repository"),
        (["capacity", "--d", "0", "--epsilon", "0.1"], "d"),
        (["capacity", "--d", "64", "--epsilon", "0"], "epsilon"),
        (["capacity", "--d", "64", "--epsilon", "nan"], "epsilon"),
        (["access", "smollm2-135m", "--error", "0"], "error = 0"),
        (["access", "smollm2-135m", "--error", "inf"], "error = inf"),
        (["access", "smollm2-135m", "--k-max", "0"], "k_max = 0"),
        (["access", "no-such-model"], "no source 'no-such-model'"),
        (["sweep", "--cells", "2000"], "k x d"),
        (["sweep", "--cells", "20x0"], "20x0"),
        (["sweep", "--cells", "20x4", "--seeds", "4-0"], "seeds"),
        (["sweep", "--cells", "20x4", "--steps", "0"], "steps = 0"),
        (["sweep", "random", "--cells", "20x4", "--draws", "1"], "draws = 1"),
        (["sweep", "--cells", "20x4", "--budget", "0"], "budget = 0"),
        (["sweep", "--profile", "huge"], "unknown sweep profile"),
        (["sweep", "--profile", "cpu", "--cells", "20x4"], "give one of them"),
        (["sweep", "--cells", "20x4", "--draws", "5"], "a packing sweep has no --draws"),
        (["sweep", "random", "--steps", "5", "--method", "optimise-2"], "a random sweep has no --method and --steps"),
        (["sweep", "--cells", "20x4", "--store", "data/models.yaml"], "has columns"),
        (["profile", "fast", "04_fitting_c"], "no profile"),
        (["models", "fetch", "nothing"], "nothing"),
    ],
)
def test_errors_are_one_line_and_not_zero(arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(paths.ROOT)
    monkeypatch.setattr(sys, "argv", ["repcap", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.strip().splitlines()) == 1


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
