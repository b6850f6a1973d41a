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


def sgd(model, fused=None):
    """Return plain SGD on the model's parameters; `fused` is one kernel for all of them."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, fused=fused)


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


def measure_steps(make_model, description, batch, launches_count=False):
    """Measure training steps of a model on one batch of `batch` images or as many as asked for.

    `launches_count` as in `training`.
    """
    args = parsed(step_flags(description, batch))
    warm_up = WARM_UP if args.device == "cuda" else 0.0
    work = training(make_model, args, launches_count)
    answer("seconds", step=times(work, args.repetitions, warm_up))


def step_flags(description, batch):
    """Return a parser of what steps are made of."""
    flags = parser(description, batch=batch)
    flags.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    flags.add_argument("--precision", default="f32", choices=["f32", "tf32", "bf16"])
    ways = flags.add_mutually_exclusive_group()
    ways.add_argument("--compiled", action="store_true", help="with torch.compile, as that is")
    ways.add_argument("--tuned", action="store_true", help="on a GPU, with what people switch on for speed")
    ways.add_argument("--deterministic", action="store_true", help="with cuDNN's deterministic convolutions")
    return flags


def training(make_model, args, launches_count=False):
    """Return a function that makes a training step of the model, as the flags say.

    The batch is in the host's memory, and every step takes it to the device.

    Tuned is: channels last, of cuDNN's convolutions those that are found to be fastest, and one kernel for the update.
    Where most of a step is the time that kernels take to be launched (`launches_count`), it is launched as CUDA graphs,
    too, which PyTorch has from its compiler.
    """
    torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
    torch.backends.cudnn.deterministic = args.deterministic
    torch.backends.cudnn.benchmark = args.tuned
    compute = contextlib.nullcontext
    if args.precision == "bf16":
        compute = functools.partial(torch.autocast, args.device, torch.bfloat16)
    model = make_model().to(args.device)
    if args.tuned:
        model = model.to(memory_format=torch.channels_last)
    optimizer = sgd(model, fused=True if args.tuned else None)
    if args.compiled:
        model = torch.compile(model)
    elif args.tuned and launches_count:
        model = torch.compile(model, mode="reduce-overhead")
    images, labels = random_batch(args.batch)
    if args.tuned:
        images = images.to(memory_format=torch.channels_last)
    if args.device == "cuda":
        images, labels = images.pin_memory(), labels.pin_memory()

    def work():
        batch = [it.to(args.device, non_blocking=True) for it in (images, labels)]
        step(model, optimizer, *batch, compute)

    return work
