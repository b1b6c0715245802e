"""The paper's published sweeps: fetched by hash, never committed; what was recomputed from them is kept as `refit.csv`.

The files belong to the public code of arXiv 2606.02765 (MIT). Figures and fits use them where they are present. Everything
derived from them that a reader needs elsewhere is stored, with its source, in data/published/refit.csv.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from repcap_utils import paths, tables
from repcap_utils.errors import RepcapError

_BASE = (
    "https://raw.githubusercontent.com/Alex-Guha/representational-capacity/"
    "c2d8f9f065f9eaaf2e32a23ec68e9481fa0bf5c2/code/vector_packing/"
)


@dataclass(frozen=True)
class Sweep:
    """One published file: rows [k, d, epsilon]."""

    file: str
    sha256: str
    cells: int


SWEEPS = {
    "optimised": Sweep(
        "optimized_packing.json", "8eee860dd489ec85eee4a177de6f74915f53a4e6707db364fd32721cae036885", 166
    ),
    "random": Sweep("random_packing.json", "2758de0b1db2f2e15633df74e9ca47c140d35a202be57d0a3ef5ae5062d8c553", 256),
}

REFIT = paths.PUBLISHED / "refit.csv"
_REFIT_COLUMNS = ["notebook", "quantity", "value", "source"]


def load(name: str) -> pd.DataFrame | None:
    """The published cells (columns k, d, epsilon), or None where the file is not on this machine.

    Args:
        name: "optimised" (166 cells) or "random" (256 cells).

    Raises:
        RepcapError: an unknown name, or a file that is not the published one.
    """
    sweep = _sweep(name)
    path = paths.reference_dir() / sweep.file
    if not path.is_file():
        return None
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sweep.sha256:
        raise RepcapError(f"{path} is not the published file (sha256 differs); remove it and run `make reference`")
    cells = pd.DataFrame(json.loads(content), columns=["k", "d", "epsilon"]).astype({"k": int, "d": int})
    return cells.sort_values(["d", "k"], ignore_index=True)


def fetch() -> list[Path]:
    """Download both files into the reference folder, verified by sha256; those already there are kept.

    Raises:
        RepcapError: no network, or a file that does not have the expected hash (it is removed).
    """
    import pooch  # it warns in notebooks without widgets, and only a download needs it

    pooch.get_logger().setLevel(logging.ERROR)
    folder = paths.reference_dir()
    if "REPCAP_REFERENCE" in os.environ and not folder.is_dir():
        raise RepcapError(f"REPCAP_REFERENCE names {folder}, which is no folder; correct it, or unset it to download")
    fetched = []
    for sweep in SWEEPS.values():
        try:
            name = pooch.retrieve(
                _BASE + sweep.file,
                known_hash=f"sha256:{sweep.sha256}",
                fname=sweep.file,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=20),
            )
        except (OSError, ValueError) as error:
            reason = type(error).__name__ if isinstance(error, OSError) else "its sha256 is not the published one"
            raise RepcapError(
                f"cannot fetch {sweep.file} ({reason}); check the network, or point REPCAP_REFERENCE at a folder that has it"
            ) from error
        fetched.append(Path(name))
    return fetched


def keep(notebook: str, source: str, quantities: Mapping[str, float]) -> None:
    """Store quantities that `notebook` recomputed from the published sweep `source`, to six significant digits.

    What the same notebook kept under other names before is left in place; the file is rewritten atomically and only when
    its content changes.
    """
    file = _sweep(source).file
    with paths.locked(REFIT):
        table = _read_refit()
        new = pd.DataFrame(
            [[notebook, name, float(f"{value:.6g}"), file] for name, value in quantities.items()],
            columns=_REFIT_COLUMNS,
        )
        old = table[~((table.notebook == notebook) & table.quantity.isin(new.quantity))]
        merged = (pd.concat([old, new]) if len(old) else new).sort_values(["notebook", "quantity"])
        paths.write_text(REFIT, merged.to_csv(index=False, lineterminator="\n", float_format="%.6g"))


def kept(notebook: str) -> pd.Series:
    """What `keep` stored for a notebook, by the name of the quantity.

    Raises:
        RepcapError: nothing is stored.
    """
    table = _read_refit()
    rows = table[table.notebook == notebook]
    if rows.empty:
        raise RepcapError(
            f"{REFIT} has no rows for {notebook}: run it where the published sweeps are (`make reference`)"
        )
    return rows.set_index("quantity").value


def _sweep(name: str) -> Sweep:
    if name not in SWEEPS:
        raise RepcapError(f"unknown published sweep {name!r}; there are {', '.join(SWEEPS)}")
    return SWEEPS[name]


def _read_refit() -> pd.DataFrame:
    if not REFIT.is_file():
        return pd.DataFrame(columns=_REFIT_COLUMNS)
    return tables.read(REFIT, _REFIT_COLUMNS)
