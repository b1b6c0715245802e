"""What every notebook starts with: its parameters checked, its versions shown; the profiles that make sets them by; tables."""

import platform
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import get_args, get_origin

import nbformat
import pandas as pd
import yaml
from IPython.display import HTML, display

from repcap_utils import __version__, paths
from repcap_utils.errors import RepcapError

NAMES = tuple(sorted(path.stem for path in paths.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")))

_IPYTHON = {"In", "Out", "get_ipython", "exit", "quit", "open"}


def begin(namespace: dict, imported: str = "notebook") -> None:
    """Check the parameters in a notebook's namespace and print what the run depends on.

    Call it as `notebook.begin(globals())` in the cell after the parameters, before any other import. The parameters cell
    annotates each name with its type; a name without an annotation was injected and is unknown.

    Raises:
        RepcapError: an unknown parameter (with the nearest known name) or a value of the wrong type.
    """
    declared = namespace.get("__annotations__", {})
    present = {name for name in namespace if not name.startswith("_")} - _IPYTHON - {imported}
    check_parameters({name: namespace[name] for name in present}, declared, "this notebook")
    seed = f", seed {namespace['seed']}" if "seed" in declared else ""
    packages = ", ".join(f"{name} {version(name).split('+')[0]}" for name in ("torch", "numpy", "scipy", "matplotlib"))
    sys.stdout.write(f"repcap {__version__}, Python {platform.python_version()}, {packages}; {_device()}{seed}\n")


def show(table: pd.DataFrame) -> None:
    """Display a table in full, without its index; format the numbers yourself, to digits that are stable across machines."""
    with pd.option_context("display.max_colwidth", None):
        display(HTML(table.to_html(index=False, border=0, justify="left", escape=True)))


def check_parameters(values: Mapping[str, object], declared: Mapping[str, object], where: str) -> None:
    """Compare parameter values with declared types (bool, int, float, str, list[...]); an int is a float, a bool is not an int.

    Raises:
        RepcapError: a name that is not declared, or a value that is not of its declared type.
    """
    for name, value in sorted(values.items(), key=lambda item: str(item[0])):
        if name not in declared:
            near = get_close_matches(str(name), declared, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(declared)) or 'none'}"
            raise RepcapError(f"unknown parameter {name!r} in {where}; {hint}")
        if not _is_a(value, declared[name]):
            raise RepcapError(f"parameter {name!r} in {where} is {value!r}, not of type {_type_name(declared[name])}")


def parameters(profile: str, name: str) -> dict:
    """The parameters that a profile gives to one notebook.

    Args:
        profile: the name of a file in notebooks/profiles ("cpu"), or the path of another YAML file of that form:
            a mapping of notebook names to mappings of parameter names to values.
        name: a notebook, such as "04_fitting_c".

    Raises:
        RepcapError: no such profile or notebook, a malformed file, an unknown notebook or parameter in it, a wrong type.
    """
    path = Path(profile) if profile.endswith((".yaml", ".yml")) else paths.NOTEBOOKS / "profiles" / f"{profile}.yaml"
    if name not in NAMES:
        raise RepcapError(f"unknown notebook {name!r}; there are {', '.join(NAMES)}")
    if not path.is_file():
        raise RepcapError(f"no profile {profile!r} ({path}); use cpu, paper or the path of a YAML file")
    try:
        sections = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RepcapError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(sections, dict) or not all(isinstance(section, dict | None) for section in sections.values()):
        raise RepcapError(f"{path}: give a mapping of notebook names to mappings of parameters")
    for section, values in sections.items():
        if section not in NAMES:
            raise RepcapError(f"unknown notebook {section!r} in {path}; there are {', '.join(NAMES)}")
        check_parameters(values or {}, declared_parameters(section), f"{path.name}, section {section}")
    return sections.get(name) or {}


def declared_parameters(name: str) -> dict[str, object]:
    """Names and types from a notebook's parameters cell."""
    namespace: dict = {}
    exec(parameters_cell(name), namespace)
    return namespace.get("__annotations__", {})


def default_parameters(name: str) -> dict[str, object]:
    """Names and default values from a notebook's parameters cell."""
    namespace: dict = {}
    exec(parameters_cell(name), namespace)
    return {key: namespace[key] for key in namespace.get("__annotations__", {})}


def parameters_cell(name: str) -> str:
    """Source of the one cell of a notebook that is tagged `parameters`.

    Raises:
        RepcapError: there is not exactly one.
    """
    cells = nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    tagged = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise RepcapError(f"notebooks/{name}.ipynb has {len(tagged)} cells tagged parameters; it needs exactly one")
    return tagged[0]


def _is_a(value: object, kind: object) -> bool:
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is_a(item, get_args(kind)[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _type_name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)


def _device() -> str:
    import torch

    return f"device {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "device cpu"
