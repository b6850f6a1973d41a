"""A training step of ResNet-18: forward, cross-entropy, backward, SGD's update, loss read."""

from lenet import random_batch, sgd, step
from measure import answer, arguments, times
from resnet18 import resnet18


def main():
    """Measure steps on one batch."""
    args = arguments(__doc__, batch=64)
    model = resnet18()
    optimizer = sgd(model)
    images, labels = random_batch(args.batch)
    answer(
        "seconds",
        step=times(lambda: step(model, optimizer, images, labels), args.repetitions),
    )


if __name__ == "__main__":
    main()
