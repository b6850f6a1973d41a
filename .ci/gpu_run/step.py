"""A step: a program that is run once, and how each kind of them is put together."""

import os
import sys
from typing import NamedTuple, Optional

from .package import HERE

# Seconds of a program of tests on a GPU.
TESTS_LIMIT = 180
# Seconds of a step under compute-sanitizer, which makes everything many times slower.
SANITIZER_LIMIT = 120
# In which steps are measured.
PRECISIONS = ("f32", "tf32", "bf16")


class Step(NamedTuple):
    """A program that is run once."""

    name: str
    # As it lies in the package.
    program: str
    arguments: list
    # Beyond that of `./run`.
    environment: dict
    # The command of whoever watches it, without its own.
    watcher: tuple = ()
    # What runs it, where it is a script.
    interpreter: tuple = ()
    # Seconds, where fewer than others have will do.
    limit: Optional[int] = None
    # Whether to run out of them is no failure.
    may_be_late: bool = False

    def command(self, folder=""):
        return [*self.watcher, *self.interpreter, os.path.join(folder, self.program), *self.arguments]


def step(name, program, *arguments, metrics=True, **environment):
    """A program, with a file of its own for what it measures."""
    files = [f"--metrics={name}.jsonl"] if metrics else []
    return Step(name, program, [*arguments, *files], environment)


def tests(device, name, program, *which):
    """A program of tests, or those of them whose names have one of these parts."""
    command = [f"tests/{program}", *which, "--nocapture", "--test-threads=1"]
    # As in .cargo/config.toml: else elementwise operations share one pool of threads, whichever device asks.
    environment = {"TEST_DEVICE": device, "CANDLE_NUM_THREADS": "1"}
    those = step(f"tests-{name}", *command, metrics=False, **environment)
    return those._replace(limit=TESTS_LIMIT) if device == "cuda" else those


def watched(sanitizer, name, tool, options, program, *which):
    """Tests on a GPU under one of compute-sanitizer's tools."""
    watcher = [sanitizer, f"--tool={tool}", "--error-exitcode=1", *options]
    those = tests("cuda", name, program, *which)._replace(name=f"sanitizer-{name}", watcher=watcher)
    return those._replace(limit=SANITIZER_LIMIT, may_be_late=True)


def beside(limit, way, *chosen):
    """The command that measures our training steps beside PyTorch's, in so many seconds."""
    # A side that hangs is named before the step is ended.
    patience = f"--patience={max(limit // 2, 1)}"
    theirs = [f"--python={sys.executable}", f"--scripts={HERE / 'peers'}"]
    return ["xtask", "peers", "--device=cuda", f"--way={way}", *chosen, patience, *theirs]


def beside_pytorch(limit, way, model, *sizes, precisions=None):
    """Comparisons with PyTorch in one of its ways: each is in the file as soon as it is done, and they add up there."""
    group = "pytorch" if way == "eager" else way
    # Those that wait for a compiler take long.
    turns = 2 if way in ("compiled", "tuned") else 3
    chosen = [f"--only={model}-step", *(f"--batch={size}" for size in sizes)]
    chosen += [f"--precision={precisions}"] if precisions else []
    command = beside(limit, way, *chosen, f"--alternations={turns}", "--update", f"--output={group}.json")
    one = [precisions] if precisions in PRECISIONS else []
    name = "-".join(map(str, [group, model, *sizes, *one]))
    return step(name, *command, metrics=False)


def beside_the_compiler(limit, model, *sizes):
    """The same beside PyTorch's compiler: each turn waits for it, so one precision is enough for a step."""
    return [beside_pytorch(limit, "compiled", model, *sizes, precisions=precision) for precision in PRECISIONS]
