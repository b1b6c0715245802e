"""Tables of measured models that are kept whole: a model's rows take the place of all its earlier ones."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from repcap_utils import paths, tables


def read(store: Path) -> pd.DataFrame:
    """The stored rows; an empty table with the column `name` where nothing has been stored."""
    return tables.read(store, literal=True) if store.is_file() else pd.DataFrame({"name": []}, dtype=str)


def keep(store: Path, rows: Sequence[dict[str, object]], by: Sequence[str] = ("name",)) -> pd.DataFrame:
    """Put the rows (each with a `name`) into a store in place of all rows of those models, atomically; return all of it.

    With more columns in `by`, rows stand for a model's variant: those that agree in all of these columns are replaced.
    The order within a variant stays as given. Floats are stored to six decimals: further digits differ between processors.
    """
    table, by = pd.DataFrame(rows), list(by)
    with paths.locked(store):
        old = read(store)
        if len(old):
            replaced = pd.MultiIndex.from_frame(old[by]).isin(pd.MultiIndex.from_frame(table[by]))
            table = pd.concat([old[~replaced], table]) if not replaced.all() else table
        table = table.sort_values(by, kind="stable", ignore_index=True)
        paths.write_text(store, table.to_csv(index=False, lineterminator="\n", float_format="%.6f"))
    return table
