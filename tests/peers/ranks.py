"""Processes of one group that talk over Gloo."""

import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD_SIZE = 2
# Whoever waits longer waits for a process that is gone.
PATIENCE = timedelta(seconds=60)


def run_ranks(work, args):
    """Run work(rank, args) in a process for each rank, and wait for all."""
    with tempfile.TemporaryDirectory() as folder:
        store = "file://" + os.path.join(folder, "store")
        mp.spawn(_rank, (work, args, store), nprocs=WORLD_SIZE)


def _rank(rank, work, args, store):
    torch.set_num_threads(args.threads)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=WORLD_SIZE, timeout=PATIENCE
    )
    work(rank, args)
    dist.destroy_process_group()
