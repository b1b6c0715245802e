"""Tables of measured models that are kept whole: a model's rows take the place of all its earlier ones."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from repcap_utils import paths, tables


def read(store: Path) -> pd.DataFrame:
    """The stored rows; an empty table with the column `name` where nothing has been stored."""
    return tables.read(store, literal=True) if store.is_file() else pd.DataFrame({"name": []}, dtype=str)


def keep(store: Path, rows: Sequence[dict[str, object]]) -> pd.DataFrame:
    """Put the rows (each with a `name`) into a store in place of all rows of those models, atomically; return all of it.

    The order within a model stays as given. Floats are stored to six decimals: further digits differ between processors.
    """
    table = pd.DataFrame(rows)
    with paths.locked(store):
        old = read(store)
        old = old[~old["name"].isin(table["name"])]
        table = pd.concat([old, table]) if len(old) else table
        table = table.sort_values("name", kind="stable", ignore_index=True)
        paths.write_text(store, table.to_csv(index=False, lineterminator="\n", float_format="%.6f"))
    return table
