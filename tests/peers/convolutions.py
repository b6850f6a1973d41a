"""ResNet-18's twenty convolutions, forward and backward, one after the other.

The first has no gradient of its input, which is data. The backward pass starts
from ones.
"""

import time

import torch
import torch.nn.functional as F
from measure import answer, arguments
from resnet18 import convolutions


def layer(batch, inputs, outputs, kernel, stride, side):
    """Return one convolution's input, weight, stride, padding and output gradient."""
    x = torch.randn(batch, inputs, side, side, requires_grad=inputs > 1)
    weight = (torch.randn(outputs, inputs, kernel, kernel) * 0.05).requires_grad_()
    padding = kernel // 2
    with torch.no_grad():
        ones = torch.ones_like(F.conv2d(x, weight, None, stride, padding))
    return x, weight, stride, padding, ones


def sweep(layers):
    """Return the seconds of all forward and of all backward passes."""
    forward = backward = 0.0
    for x, weight, stride, padding, ones in layers:
        x.grad = weight.grad = None
        start = time.perf_counter()
        y = F.conv2d(x, weight, None, stride, padding)
        middle = time.perf_counter()
        y.backward(ones)
        backward += time.perf_counter() - middle
        forward += middle - start
    return forward, backward


def main():
    """Measure sweeps over all twenty."""
    args = arguments(__doc__, batch=64)
    layers = [layer(args.batch, *geometry) for geometry in convolutions()]
    sweep(layers)
    sweeps = [sweep(layers) for _ in range(args.repetitions)]
    answer(
        "seconds",
        forward=[forward for forward, _ in sweeps],
        backward=[backward for _, backward in sweeps],
        both=[sum(both) for both in sweeps],
    )


if __name__ == "__main__":
    main()
