"""Steps under DistributedDataParallel over Gloo: two processes share a batch.

`--batch` is the size of the whole batch. The loss that is read is a process's own.
A step ends when the gradients have been added up, so one process's clock tells.
"""

from functools import partial

from lenet import random_batch, sgd, step
from measure import answer, arguments, times
from ranks import WORLD_SIZE, run_ranks
from torch.nn.parallel import DistributedDataParallel


def work(make_model, rank, args):
    """Measure this process's steps on its half of the batch."""
    model = DistributedDataParallel(make_model())
    optimizer = sgd(model)
    images, labels = random_batch(args.batch // WORLD_SIZE)
    seconds = times(lambda: step(model, optimizer, images, labels), args.repetitions)
    if rank == 0:
        answer("seconds", step=seconds)


def measure_steps(make_model, description, batch):
    """Measure steps of a model on one batch of `batch` images or as many as asked for."""
    run_ranks(partial(work, make_model), arguments(description, batch=batch))
