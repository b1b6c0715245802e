"""What holds the project together: pins, notebooks, figures, data dictionary, layers. No number of the study is tested here."""

import ast
import configparser
import csv
import re
import subprocess
import tomllib
from itertools import chain

import nbformat
import pytest
import yaml

from repcap_utils import claims, notebook, paths

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)( ; .+)?$")


def lock() -> dict[str, str]:
    lines = (paths.ROOT / "requirements.lock").read_text().splitlines()
    pins = [PINNED.match(line) for line in lines if line and not line.startswith("#")]
    assert all(pins), "every line of the lock is an exact pin"
    return {canonical(pin[1]): pin[2] for pin in pins}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> dict:
    return tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]


def tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=paths.ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return listing.stdout.splitlines()


def test_lock_pins_every_dependency():
    pins = lock()
    assert pins["torch"] == "2.13.0"
    assert pins["triton"] == "3.7.1", "the CUDA build of torch 2.13.0 requires exactly this one"
    wanted = [*project()["dependencies"], *chain(*project()["optional-dependencies"].values())]
    for requirement in wanted:
        name, floor = requirement.partition(";")[0].split(">=")
        assert canonical(name) in pins, f"{name} is not in requirements.lock; run `make lock`"
        found = [int(part) for part in re.findall(r"\d+", pins[canonical(name)])[:2]]
        assert found >= [int(part) for part in floor.split(".")], f"{name} is pinned below its floor"


def test_environment_yml_is_in_step():
    environment = yaml.safe_load((paths.ROOT / "environment.yml").read_text())
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    pip = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert pip == ["-r requirements.lock", "-e ."]
    python = next(entry for entry in conda if entry.startswith("python="))
    assert python.split("=")[1] == project()["requires-python"].removeprefix(">=")
    assert {"pip", "make", "git"} <= set(conda)


def test_citation_names_both_papers():
    citation = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text())
    found = {entry["identifiers"][0]["value"] for entry in citation["references"]}
    assert found == {"arXiv:2606.02765", "arXiv:2602.11246"}
    from repcap_utils import __version__

    assert citation["version"] == __version__


@pytest.mark.parametrize("name", notebook.NAMES)
def test_notebook_form(name):
    book = nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert book.metadata.kernelspec.name == "python3"
    assert book.cells[0].cell_type == "markdown"
    assert book.cells[0].source.startswith(f"# {name[:2]} · ")
    assert [cell for cell in code if "parameters" in cell.metadata.get("tags", [])] == code[:1]
    assert "notebook.begin(globals())" in code[1].source
    for cell in code:
        assert cell.execution_count is not None, f"{name} has a cell that was not executed: run `make refresh`"
        assert not [output for output in cell.outputs if output.output_type in ("error", "stream") and _bad(output)]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def _bad(output) -> bool:
    return output.output_type == "error" or output.name == "stderr"


@pytest.mark.parametrize("name", notebook.NAMES)
def test_parameters_are_typed_and_commented(name):
    source = notebook.parameters_cell(name)
    for node in ast.parse(source).body:
        assert isinstance(node, ast.AnnAssign), "each parameter has a type"
        assert "#" in source.splitlines()[node.lineno - 1] or "#" in source.splitlines()[node.end_lineno - 1]


def test_notebooks_have_no_relative_paths():
    for path in paths.NOTEBOOKS.glob("*.ipynb"):
        source = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
        assert "../" not in source
        assert "%cd" not in source


def test_notebooks_are_those_of_the_study():
    assert list(notebook.NAMES) == ["00_report", *claims.NOTEBOOKS]


def test_every_figure_belongs_to_a_notebook():
    saved = set()
    for path in paths.NOTEBOOKS.glob("*.ipynb"):
        source = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
        found = set(re.findall(r'"(\d\d_\w+)"', source)) - set(notebook.NAMES)
        assert all(name.startswith(path.stem[:2]) for name in found), path.name
        saved |= found
    assert saved == {path.stem for path in paths.FIGURES.glob("*.png")}


def test_nbval_rules_parse():
    rules = configparser.RawConfigParser()
    rules.read(paths.ROOT / "tests" / "nbval_sanitize.cfg")
    text = (paths.ROOT / "tests" / "nbval_sanitize.cfg").read_text()
    assert rules.sections()
    assert len(rules.sections()) == text.count("regex:") == text.count("replace: ")
    for section in rules.sections():
        re.compile(rules.get(section, "regex"))


def test_readme_verdicts_are_current(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text((paths.ROOT / "README.md").read_text())
    assert not claims.update_readme(copy), "README.md is stale: run `make all` or `repcap report`"


def test_every_claim_has_a_verdict():
    table = claims.table()
    assert len(table) >= 35
    assert set(table.verdict) <= {claims.REPRODUCED, claims.CAVEAT, claims.NOT_SUPPORTED}


def test_data_dictionary_is_complete():
    text = (paths.DATA / "README.md").read_text()
    stores = [path for folder in ("published", "sweeps", "survey") for path in (paths.DATA / folder).glob("*.csv")]
    assert stores
    for path in stores:
        assert path.name in text, f"data/README.md does not describe {path.name}"
        section = text.split(f"{path.parent.name}/{path.name}", 1)[1].split("\n## ")[0]
        with path.open(newline="") as handle:
            for column in next(csv.reader(handle)):
                assert f"`{column}`" in section, f"data/README.md does not describe {path.name}: {column}"


def test_nothing_published_or_licensed_is_tracked():
    files = tracked()
    assert not [
        name for name in files if re.search(r"(optimized|random)_packing\.json$|\.(gguf|safetensors|whl|bin)$", name)
    ]
    sizes = {name: (paths.ROOT / name).stat().st_size for name in files if (paths.ROOT / name).is_file()}
    assert not [name for name, size in sizes.items() if size > 2 * 2**20]


def imports(path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("repcap_utils"):
            rest = node.module.removeprefix("repcap_utils").lstrip(".")
            found |= {rest.split(".")[0]} if rest else {alias.name for alias in node.names}
    return found - {"__version__", ""}


LAYERS = [
    {"errors"},
    {"checks", "paths"},
    {"kernels", "resources", "stores", "tables", "texts", "tokens"},
    {
        "capacity",
        "codes",
        "random_packing",
        "models",
        "containers",
        "hub",
        "embeddings",
        "rows",
        "similarity",
        "isotropy",
        "spectrum",
        "gaps",
        "packing",
        "bounds",
    },
    {
        "sweep",
        "claims",
        "plotting",
        "reference",
        "survey",
        "notebook",
        "lexical",
        "unembedding",
        "tiny_untied",
        "tying",
        "directions",
        "model_report",
        "linear_access",
        "sparse_recovery",
        "access_report",
    },
    {"cli"},
]


def test_modules_import_downward_only():
    level = {name: depth for depth, names in enumerate(LAYERS) for name in names}
    package = paths.ROOT / "repcap_utils"
    graph = {path.stem: imports(path) for path in package.glob("*.py") if path.stem != "__init__"}
    graph["kernels"] = set().union(*(imports(path) for path in (package / "kernels").glob("*.py"))) - {"kernels"}
    assert set(graph) == set(level), "a module has no layer yet"
    for name, used in graph.items():
        assert all(level[other] <= level[name] for other in used), f"{name} imports upward"
    assert graph["kernels"] == set()
    assert graph["plotting"] <= {"paths", "errors"}

    def reach(name: str, seen: frozenset = frozenset()) -> None:
        assert name not in seen, f"{name} is in a circle of imports"
        for other in graph[name]:
            reach(other, seen | {name})

    for name in graph:
        reach(name)


def test_make_help_lists_the_targets():
    text = (paths.ROOT / "Makefile").read_text()
    documented = set(re.findall(r"^([a-z]+):.*## ", text, flags=re.M))
    wanted = {
        "help",
        "all",
        "test",
        "bench",
        "models",
        "sweep",
        "survey",
        "model",
        "reference",
        "lab",
        "refresh",
        "lock",
        "clean",
    }
    assert wanted <= documented


def test_library_does_not_print():
    for path in (paths.ROOT / "repcap_utils").rglob("*.py"):
        if path.name == "cli.py":
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], path.name


def test_ci_runs_the_readme_test_command():
    assert "\nmake test\n" in (paths.ROOT / ".ci" / "run").read_text()
    assert "bash .ci/run" in (paths.ROOT / ".github" / "workflows" / "ci.yml").read_text()
    readme = (paths.ROOT / "README.md").read_text()
    assert "make all" in readme
    assert "make test" in readme
