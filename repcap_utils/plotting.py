"""One style and one way to save a figure. No numerics here."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files

import matplotlib.pyplot as plt
from IPython.display import Image, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D

from repcap_utils import paths
from repcap_utils.errors import RepcapError

OURS, PUBLISHED, RANDOM, BOUND, MUTED = "#0072B2", "#D55E00", "#444444", "#009E73", "#999999"
"""Colours by meaning (all distinguishable by colour-blind readers): our values, the paper's, random vectors, proved bounds."""


@contextmanager
def style() -> Iterator[None]:
    """The project's matplotlib style, for the duration of a with block."""
    with as_file(files("repcap_utils") / "repcap.mplstyle") as path, plt.style.context(path):
        yield


def subplots(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] | None = None, **options
) -> tuple[Figure, Axes]:
    """`matplotlib.pyplot.subplots` in the project's style; `size` in inches."""
    with style():
        return plt.subplots(rows, columns, figsize=size, **options)


def surface(*, size: tuple[float, float] = (8.0, 6.0)) -> tuple[Figure, Axes3D]:
    """A figure with one 3-D axes in the project's style, for the paper's surface plots."""
    with style():
        figure = plt.figure(figsize=size)
        return figure, figure.add_subplot(projection="3d")


def save(figure: Figure, name: str) -> None:
    """Write `figure` to figures/NAME.png with bytes that depend on the picture alone, show it, and close it.

    Raises:
        RepcapError: the figures folder is not writable, or the name is not of the form 04_ratio_fit.
    """
    if not name.replace("_", "").isalnum() or not name[:2].isdigit():
        raise RepcapError(f"figure name {name!r}: use the notebook's number and words, like 04_ratio_fit")
    _finish(figure)
    buffer = io.BytesIO()
    with style():
        # the library writes its version into the file unless told not to
        figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    paths.write_bytes(paths.FIGURES / f"{name}.png", buffer.getvalue())
    show(name)


def _finish(figure: Figure) -> None:
    """Give titles and legends the project's look: matplotlib reads those settings when they are made, not when drawn."""
    for axes in figure.axes:
        title = axes.get_title() or axes.get_title(loc="left")
        axes.set_title("")
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        if axes.get_legend() is not None:
            axes.get_legend().get_frame().set_linewidth(0)
    for legend in figure.legends:
        legend.get_frame().set_linewidth(0)


def show(name: str) -> None:
    """Display figures/NAME.png, for a figure whose data are not on this machine.

    Raises:
        RepcapError: there is no such figure.
    """
    path = paths.FIGURES / f"{name}.png"
    if not path.is_file():
        raise RepcapError(f"no figure {path}: restore it with `git checkout figures`, or run `make all`")
    display(Image(data=path.read_bytes(), width=760))
