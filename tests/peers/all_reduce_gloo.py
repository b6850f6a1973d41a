"""torch.distributed's all_reduce over Gloo between two processes, f32, in place."""

import torch
import torch.distributed as dist
from all_reduce import SIZES, times
from measure import answer, arguments
from ranks import run_ranks


def work(rank, args):
    """Measure every size."""
    series = {}
    for name, numbers in SIZES.items():
        tensor = torch.zeros(numbers)
        series[name] = times(
            lambda: dist.all_reduce(tensor), dist.barrier, numbers, args.repetitions
        )
    if rank == 0:
        answer("seconds", **series)


if __name__ == "__main__":
    run_ranks(work, arguments(__doc__))
