"""The memory of a process that trains LeNet for an epoch and tests it.

The images lie in memory one byte a pixel; batches are converted as they come. A
sixth as many images again are tested.
"""

import torch
from lenet import lenet, sgd, step
from measure import answer, arguments

BATCH = 256


def peak():
    """Return the most memory that this process has had so far, in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def random_images(count):
    """Return images as bytes, and labels."""
    shape = (count, 1, 28, 28)
    return torch.randint(256, shape, dtype=torch.uint8), torch.randint(10, (count,))


def converted(images, chosen):
    """Return the chosen images with pixels in 0..1."""
    return images[chosen].float().div_(255)


def main():
    """Train, test, and measure."""
    args = arguments(__doc__, images=60_000)
    start = peak()
    images, labels = random_images(args.images)
    test_images, test_labels = random_images(args.images // 6)
    model = lenet()
    optimizer = sgd(model)
    for chosen in torch.randperm(args.images).split(BATCH):
        step(model, optimizer, converted(images, chosen), labels[chosen])
    with torch.inference_mode():
        correct = 0
        for chosen in torch.arange(len(test_labels)).split(BATCH):
            logits = model(converted(test_images, chosen))
            correct += (logits.argmax(1) == test_labels[chosen]).sum().item()
    answer("bytes", **{"peak": [peak()], "before the data": [start]})


if __name__ == "__main__":
    main()
