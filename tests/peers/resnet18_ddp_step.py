"""A step of ResNet-18 under DistributedDataParallel over Gloo: two processes share a batch."""

from data_parallel import measure_steps
from resnet18 import resnet18

if __name__ == "__main__":
    measure_steps(resnet18, __doc__, batch=32)
