"""A training step of LeNet: forward, cross-entropy, backward, SGD's update, loss read."""

from lenet import lenet, measure_steps

if __name__ == "__main__":
    measure_steps(lenet, __doc__, batch=256, launches_count=True)
