"""The sequence of a run: whether this machine can do it, one step after the other, and what came of all."""

import datetime
import os
import signal
import tempfile
import time
from pathlib import Path

from .alone import run_alone
from .execution import STOPS, Stopped, run, stop
from .libraries import library_folders
from .machine import STATE, compute_sanitizer, description, gpus, keep_awake, others, state, torch_version
from .package import HERE, check_capability, check_profile, told
from .results import Results


def tell(chosen):
    """Says which steps would be run, a line for each."""
    for step in chosen:
        settings = [f"{key}={value}" for key, value in step.environment.items()]
        print(f"{step.name:26} {' '.join(settings + step.command())}")


def run_all(parsed, chosen):
    """Runs the steps: whether all of them ended as they should, and every law holds."""
    for number in STOPS:
        signal.signal(number, stop)
    package = told()
    print(f"version {package['version']}, commit {package['commit']}, profile {package['profile']}", flush=True)
    if not (parsed.on_cpu or parsed.any_profile):
        check_profile(package, chosen)
    # A script asks for no libraries. The tool that measures, xtask, asks for all of them.
    folders, libraries = library_folders(sorted({HERE / "xtask", *(HERE / step.program for step in chosen)}))
    if not parsed.on_cpu:
        keep_awake()
    found = [] if parsed.on_cpu else gpus()
    check_capability(package, found)
    busy = [] if parsed.on_cpu else others()
    for other in busy:
        print(f"note: another process is on the GPU: {other}", flush=True)
    parsed.results.mkdir(parents=True, exist_ok=True)
    folder = parsed.results.resolve()
    known = {
        "package": package,
        "date": datetime.date.today().isoformat(),
        "machine": description(found, busy),
        "libraries": libraries,
        "pytorch": torch_version(),
        "compute_sanitizer": compute_sanitizer(),
    }
    results = Results(folder, (parsed.archive or folder / "results.tar.gz").resolve(), known, chosen)
    # What the driver has translated for the GPU, for the next step's process.
    cache = {"CUDA_CACHE_PATH": str(Path(tempfile.gettempdir(), "course-cuda-cache")), "CUDA_CACHE_MAXSIZE": str(1 << 30)}
    ours = {"LD_LIBRARY_PATH": ":".join(folders), "RUST_BACKTRACE": "0"}
    try:
        for step in chosen:
            environment = {**cache, **os.environ, **step.environment, **ours}
            if run_step(step, parsed, environment, results) == "failed":
                run_alone(step, environment, results)
    except Stopped:
        # It may have come while they were written.
        results.write()
        raise
    return results.sum_up()


def run_step(step, parsed, environment, results):
    """Runs a step and writes down what came of it: what became of it."""
    limit = min(parsed.limit, step.limit or parsed.limit)
    print(f"{step.name:26} ", end="", flush=True)
    before = None if parsed.on_cpu else state()
    started = time.monotonic()
    try:
        output = results.folder / f"{step.name}.txt"
        ended, seconds = run(step.command(HERE), results.folder, environment, output, limit)
    except Stopped as stopped:
        results.add(step, str(stopped), time.monotonic() - started, {"asked": STATE, "before": before})
        raise
    states = {"asked": STATE, "before": before}
    try:
        states["after"] = None if parsed.on_cpu else state()
    except Stopped:
        # The step had ended: what it has found is not lost with the question.
        results.add(step, ended, seconds, states)
        raise
    return results.add(step, ended, seconds, states)
