"""A step of LeNet under DistributedDataParallel over Gloo: two processes share a batch."""

from data_parallel import measure_steps
from lenet import lenet

if __name__ == "__main__":
    measure_steps(lenet, __doc__, batch=256)
