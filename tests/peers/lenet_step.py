"""A training step of LeNet: forward, cross-entropy, backward, SGD's update, loss read."""

from lenet import lenet, random_batch, sgd, step
from measure import answer, arguments, times


def main():
    """Measure steps on one batch."""
    args = arguments(__doc__, batch=256)
    model = lenet()
    optimizer = sgd(model)
    images, labels = random_batch(args.batch)
    answer(
        "seconds",
        step=times(lambda: step(model, optimizer, images, labels), args.repetitions),
    )


if __name__ == "__main__":
    main()
