"""A training step of ResNet-18: forward, cross-entropy, backward, SGD's update, loss read."""

from lenet import measure_steps
from resnet18 import resnet18

if __name__ == "__main__":
    measure_steps(resnet18, __doc__, batch=64)
