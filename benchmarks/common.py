"""What the benchmarks share: their options, the table of figures that each ends with, and peak memory in a fresh process."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from repcap_utils.paths import write_text

Figures = dict[str, float | str | int]


def options(description: str) -> argparse.ArgumentParser:
    """A parser that knows --quick and --json FILE."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small shapes, a few seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    return parser


def publish(figures: Figures, file: Path | None) -> None:
    """Print the figures as a markdown table, and write them as JSON where a file is named."""
    print("| figure | value |\n| --- | --- |")
    for name, value in figures.items():
        print(f"| {name.replace('_', ' ')} | {f'{value:.4g}' if isinstance(value, float) else value} |")
    if file is not None:
        write_text(file, json.dumps(figures, indent=2) + "\n")


def printed_by(code: str, *arguments: object, **environment: str) -> object:
    """What a fresh Python process prints, read as JSON; its `code` can import this module."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def peak_bytes() -> int:
    """The largest resident size of this process so far (Linux)."""
    # VmHWM, since ru_maxrss of a child starts at the peak of the process that started it
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
