"""What `./run` is asked for: its arguments, and the steps that they choose."""

import argparse
import os
from pathlib import Path

from .machine import compute_sanitizer
from .plan import steps
from .step import SANITIZER_LIMIT, TESTS_LIMIT


def arguments(description):
    """What was asked for, and the steps that are to be run; ends the program with a line where that is not possible."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER", help="a new or empty folder")
    archive = "a new file for all of it in one [results.tar.gz in the folder]"
    parser.add_argument("--archive", type=Path, metavar="FILE", help=archive)
    parser.add_argument("--only", metavar="NAMES", help="only steps whose names begin with one of these")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    limit = f"of each step [300]; of tests at most {TESTS_LIMIT}, under compute-sanitizer {SANITIZER_LIMIT}"
    parser.add_argument("--limit", type=int, default=300, metavar="SECONDS", help=limit)
    parser.add_argument("--data", default="synthetic", help="as the programs' --data [synthetic]")
    parser.add_argument("--on-cpu", action="store_true", help="try this out without a GPU: on slices of the CPU")
    slow = "try this out with a package of another profile than release: measure all the same"
    parser.add_argument("--any-profile", action="store_true", help=slow)
    parsed = parser.parse_args()
    if parsed.limit < 1:
        parser.error("--limit: at least 1 second")
    # Each step runs in the folder of results.
    data = str(Path(parsed.data).resolve()) if Path(parsed.data).is_dir() else parsed.data
    chosen = list(steps("cpu" if parsed.on_cpu else "cuda", data, parsed.limit))
    if parsed.only is not None:
        beginnings = tuple(name.strip() for name in parsed.only.split(",") if name.strip())
        chosen = [step for step in chosen if step.name.startswith(beginnings)]
        if not chosen:
            without = "" if parsed.on_cpu or compute_sanitizer() else ", and compute-sanitizer is not there"
            parser.error(f"--only {parsed.only}: no step begins like this (--list){without}")
    if not parsed.list and parsed.results.exists() and (not parsed.results.is_dir() or any(parsed.results.iterdir())):
        parser.error(f"--results {parsed.results} is there already, and not an empty folder")
    if parsed.archive is not None:
        # Each group of steps wants its own: what is there may be all that is left of another.
        if parsed.archive.exists():
            parser.error(f"--archive {parsed.archive} is there already")
        if not os.access(parsed.archive.resolve().parent, os.W_OK):
            parser.error(f"--archive {parsed.archive}: no file can be made there")
    return parsed, chosen
