"""What the measurements of all-reduce agree on: sizes, and how many calls are timed at once."""

import time

# Numbers of four bytes; 45 MB are ResNet-18's gradients.
SIZES = {"4 KB": 1_000, "1 MB": 250_000, "45 MB": 11_250_000}


def calls(numbers):
    """Return how many calls are timed together: a single short one would measure the clock."""
    return min(max(30_000_000 // numbers, 3), 1000)


def times(all_reduce, barrier, numbers, repetitions):
    """Return the seconds of a call, on average over the calls of each repetition.

    Nobody leaves an all-reduce before everybody has come to it, so over many calls
    one process's clock tells.
    """
    all_reduce()
    seconds = []
    count = calls(numbers)
    for _ in range(repetitions):
        barrier()
        start = time.perf_counter()
        for _ in range(count):
            all_reduce()
        seconds.append((time.perf_counter() - start) / count)
    return seconds
