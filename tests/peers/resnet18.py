"""ResNet-18 for 28×28 images of one channel, and the geometry of its convolutions.

The first convolution is 3×3 with stride 1 and nothing is pooled after it, as usual
for images of this size; the rest is the paper's (He et al., 2015, table 1).
"""

import torch.nn.functional as F
from torch import nn

SIDE = 28


def convolutions():
    """Return the twenty convolutions in order: channels in, out, kernel, stride, input side."""
    found = [(1, 64, 3, 1, SIDE)] + [(64, 64, 3, 1, SIDE)] * 4
    side = SIDE
    for planes in (128, 256, 512):
        half = side // 2 + side % 2
        found += [
            (planes // 2, planes, 3, 2, side),
            (planes, planes, 3, 1, half),
            (planes // 2, planes, 1, 2, side),
            (planes, planes, 3, 1, half),
            (planes, planes, 3, 1, half),
        ]
        side = half
    return found


def conv(inputs, outputs, kernel, stride):
    """Return a convolution without bias that only its stride makes smaller."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short_cut = nn.Identity()
        if stride > 1:
            self.short_cut = nn.Sequential(
                conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        """Return relu(the two convolutions + the shortcut)."""
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.short_cut(x), inplace=True)


def resnet18():
    """Return ResNet-18 with PyTorch's own first weights."""
    blocks = [Block(64, 64, 1), Block(64, 64, 1)]
    for planes in (128, 256, 512):
        blocks += [Block(planes // 2, planes, 2), Block(planes, planes, 1)]
    return nn.Sequential(
        conv(1, 64, 3, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
