"""LeNet as the course has it, its first weights, and training steps of it or another model."""

import contextlib
import functools

import torch
import torch.nn.functional as F
from torch import nn

from measure import answer, parsed, parser, times

LEARNING_RATE = 0.1
# Seconds that a GPU works before anybody looks at the clock: one that has rested is slow at first.
WARM_UP = 0.5


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


def step(model, optimizer, images, labels, compute=contextlib.nullcontext):
    """Make one training step and return its loss, read from the device."""
    optimizer.zero_grad(set_to_none=True)
    with compute():
        loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def measure_steps(make_model, description, batch):
    """Measure training steps of a model on one batch of `batch` images or as many as asked for."""
    args = parsed(step_flags(description, batch))
    warm_up = WARM_UP if args.device == "cuda" else 0.0
    answer("seconds", step=times(training(make_model, args), args.repetitions, warm_up))


def step_flags(description, batch):
    """Return a parser of what steps are made of."""
    flags = parser(description, batch=batch)
    flags.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    flags.add_argument("--precision", default="f32", choices=["f32", "tf32", "bf16"])
    flags.add_argument("--compiled", action="store_true", help="with torch.compile")
    flags.add_argument("--deterministic", action="store_true", help="with cuDNN's deterministic convolutions")
    return flags


def training(make_model, args):
    """Return a function that makes a training step of the model, as the flags say.

    The batch is in the host's memory, and every step takes it to the device.
    """
    torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
    torch.backends.cudnn.deterministic = args.deterministic
    compute = contextlib.nullcontext
    if args.precision == "bf16":
        compute = functools.partial(torch.autocast, args.device, torch.bfloat16)
    model = make_model().to(args.device)
    optimizer = sgd(model)
    model = torch.compile(model) if args.compiled else model
    images, labels = random_batch(args.batch)
    if args.device == "cuda":
        images, labels = images.pin_memory(), labels.pin_memory()

    def work():
        batch = [it.to(args.device, non_blocking=True) for it in (images, labels)]
        step(model, optimizer, *batch, compute)

    return work
