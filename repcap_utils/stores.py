"""Tables of measured models that are kept whole: a model's rows take the place of all its earlier ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from repcap_utils import paths, tables
from repcap_utils.errors import RepcapError


def read(store: Path, by: Sequence[str] = ("name",)) -> pd.DataFrame:
    """The stored rows; an empty table with the columns `by` where nothing has been stored.

    Raises:
        RepcapError: the file is no such table.
    """
    if not store.is_file():
        return pd.DataFrame(columns=list(by), dtype=str)
    table = tables.read(store, literal=True)
    require(store, table, by)
    return table


def require(store: Path, table: pd.DataFrame, columns: Sequence[str]) -> None:
    """Refuse a table that lacks one of the columns: another file has taken the store's place."""
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise RepcapError(
            f"{store}: no column {', '.join(map(repr, missing))}: not a table of this kind; restore it, or move it away"
        )


def keep(
    store: Path,
    rows: Sequence[dict[str, object]],
    by: Sequence[str] = ("name",),
    *,
    names: Sequence[str] | None = None,
    digits: int = 6,
) -> None:
    """Put rows into a store in place of all rows of the same models (or of what `by` names), atomically.

    The order within a model stays as given. Rows of other models are kept character by character.

    Args:
        by: earlier rows that agree with a new one in all of these columns go; with more than the name, those of a variant.
        names: the models whose earlier rows go; by default those that `rows` name.
        digits: decimals of a float; those beyond differ between processors.

    Raises:
        RepcapError: a store that is not readable as CSV, or cannot be written.
    """
    by = list(by)
    fresh = pd.DataFrame([{key: _text(value, digits) for key, value in row.items()} for row in rows])
    gone = fresh[by] if names is None else pd.DataFrame({"name": list(names)})
    with paths.locked(store):
        old = tables.read(store, types=str, literal=True) if store.is_file() else pd.DataFrame(columns=by, dtype=str)
        columns = list(gone.columns)
        require(store, old, columns)
        others = old[~pd.MultiIndex.from_frame(old[columns]).isin(pd.MultiIndex.from_frame(gone))]
        parts = [part for part in (others, fresh) if len(part)]
        if not parts and not store.is_file():
            return
        table = pd.concat(parts).fillna("") if parts else others
        table = table.sort_values(by, kind="stable", ignore_index=True, key=_sortable)
        paths.write_text(store, table.to_csv(index=False, lineterminator="\n"))


def _sortable(column: pd.Series) -> pd.Series:
    """Numbers in the order of numbers, everything else in that of texts."""
    numbers = pd.to_numeric(column, errors="coerce")
    return column if numbers.isna().any() else numbers


def _text(value: object, digits: int) -> str:
    if value is None or value is pd.NA or value != value:
        return ""
    return f"{value:.{digits}f}" if isinstance(value, float | np.floating) else str(value)
