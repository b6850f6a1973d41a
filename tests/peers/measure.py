"""What the scripts of this folder share: arguments, the clock, and the answer.

Each script does one kind of work in PyTorch, with the threads it is told to use,
and prints its times as the last line of standard output, one JSON object:

    {"seconds": {"step": [0.0251, 0.0249, 0.0250]}}

There is a list for each thing that was timed. `cargo xtask peers` runs the
scripts in turn with ours, sets OMP_NUM_THREADS and MKL_NUM_THREADS to the number
of threads before Python starts, and works out medians and ratios.
"""

import argparse
import json
import time

import torch


def arguments(description, **sizes):
    """Return the parsed arguments, and set PyTorch's threads; `sizes` as in `parser`."""
    return parsed(parser(description, **sizes))


def parser(description, **sizes):
    """Return a parser of what all scripts are told.

    `sizes` are further whole numbers that the work needs, with their defaults.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=1, help="threads of a device")
    parser.add_argument("--repetitions", type=int, default=10, help="timed repetitions")
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def parsed(parser):
    """Return the parsed arguments, and set PyTorch's threads."""
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    return args


def times(work, repetitions, warm_up=0.0):
    """Return the seconds of each repetition, after one that is not counted and, behind it, `warm_up` seconds of them."""
    work()
    begun = time.perf_counter()
    while time.perf_counter() - begun < warm_up:
        work()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def answer(unit, **series):
    """Print the lists of numbers that were measured, in this unit."""
    print(json.dumps({unit: series}), flush=True)
