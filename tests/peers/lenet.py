"""LeNet as the course has it, its first weights, and training steps of it or another model."""

import torch
import torch.nn.functional as F
from torch import nn

from measure import answer, arguments, times

LEARNING_RATE = 0.1


def lenet():
    """Return LeNet with weights from N(0, 0.01²) and zero biases."""
    model = nn.Sequential(
        nn.Conv2d(1, 20, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.01)
        else:
            nn.init.zeros_(parameter)
    return model


def sgd(model):
    """Return plain SGD on the model's parameters."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def random_batch(size):
    """Return images in 0..1 and labels."""
    return torch.rand(size, 1, 28, 28), torch.randint(10, (size,))


def step(model, optimizer, images, labels):
    """Make one training step and return its loss, read from the device."""
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def measure_steps(make_model, description, batch):
    """Measure training steps of a model on one batch of `batch` images or as many as asked for."""
    args = arguments(description, batch=batch)
    model = make_model()
    optimizer = sgd(model)
    images, labels = random_batch(args.batch)
    answer(
        "seconds",
        step=times(lambda: step(model, optimizer, images, labels), args.repetitions),
    )
