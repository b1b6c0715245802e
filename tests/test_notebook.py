import pytest

from repcap_utils import notebook
from repcap_utils.errors import RepcapError

DECLARED = {"seed": int, "epsilon": float, "models": list[str], "quick": bool, "title": str, "dims": list[int]}


def namespace(**values):
    return {
        "__annotations__": DECLARED,
        "_hidden": 1,
        "In": [],
        "Out": {},
        "get_ipython": len,
        "notebook": notebook,
        **values,
    }


def test_begin_prints_versions_and_seed(capsys):
    notebook.begin(namespace(seed=7))
    out = capsys.readouterr().out
    assert "seed 7" in out
    assert "torch 2.13.0" in out


@pytest.mark.parametrize(
    "values",
    [
        {"seed": 1, "epsilon": 2, "models": ["a"], "quick": False, "title": "x", "dims": [1]},
        {"epsilon": 0.5, "models": [], "dims": []},
    ],
)
def test_good_parameters_pass(values):
    notebook.check_parameters(values, DECLARED, "here")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sed": 1}, "unknown parameter 'sed' in here; did you mean 'seed'"),
        ({"zzzzz": 1}, "unknown parameter 'zzzzz' in here; known: dims"),
        ({"seed": "1"}, "'seed' in here is '1', not of type int"),
        ({"seed": True}, "not of type int"),
        ({"quick": "false"}, "'quick' in here is 'false', not of type bool"),
        ({"models": "a"}, "not of type list"),
        ({"dims": [1, "2"]}, "not of type list"),
        ({"epsilon": None}, "not of type float"),
    ],
)
def test_bad_parameters_are_named(values, message):
    with pytest.raises(RepcapError, match=message):
        notebook.check_parameters(values, DECLARED, "here")


def test_begin_refuses_an_injected_unknown():
    with pytest.raises(RepcapError, match="unknown parameter 'extra'"):
        notebook.begin(namespace(seed=7, extra=1))


@pytest.mark.parametrize("name", notebook.NAMES)
def test_cpu_profile_is_the_notebooks_defaults(name):
    assert notebook.parameters("cpu", name) == notebook.default_parameters(name)


@pytest.mark.parametrize("name", notebook.NAMES)
def test_paper_profile_is_valid(name):
    assert set(notebook.parameters("paper", name)) <= set(notebook.default_parameters(name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("04_fitting_c: {nonsense: 1}", "unknown parameter 'nonsense' in mine.yaml, section 04_fitting_c"),
        ("04_fiting_c: {seed: 1}", "unknown notebook '04_fiting_c'"),
        ("04_fitting_c: [1]", "give a mapping"),
        ("- 1", "give a mapping"),
        ("a: b: c", "is not YAML"),
    ],
)
def test_bad_profiles_are_refused(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RepcapError, match=message):
        notebook.parameters(str(path), "04_fitting_c")


def test_missing_profile_and_notebook_are_refused():
    with pytest.raises(RepcapError, match="no profile 'fast'"):
        notebook.parameters("fast", "04_fitting_c")
    with pytest.raises(RepcapError, match="unknown notebook"):
        notebook.parameters("cpu", "99_nothing")
