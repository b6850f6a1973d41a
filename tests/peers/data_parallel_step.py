"""A step of LeNet under DistributedDataParallel over Gloo: two processes share a batch.

`--batch` is the size of the whole batch. The loss that is read is a process's own.
A step ends when the gradients have been added up, so one process's clock tells.
"""

from lenet import lenet, random_batch, sgd, step
from measure import answer, arguments, times
from ranks import WORLD_SIZE, run_ranks
from torch.nn.parallel import DistributedDataParallel


def work(rank, args):
    """Measure this process's steps on its half of the batch."""
    model = DistributedDataParallel(lenet())
    optimizer = sgd(model)
    images, labels = random_batch(args.batch // WORLD_SIZE)
    seconds = times(lambda: step(model, optimizer, images, labels), args.repetitions)
    if rank == 0:
        answer("seconds", step=seconds)


if __name__ == "__main__":
    run_ranks(work, arguments(__doc__, batch=256))
