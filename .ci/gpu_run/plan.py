"""The plan: which steps there are, in their order.

A command may end before they do, so in each group comes first what is wanted most; at last what takes longest for what it
says.
"""

import sys

from .machine import compute_sanitizer
from .step import PRECISIONS, beside, beside_pytorch, beside_the_compiler, step, tests, watched

# Tests of operations on the device that TEST_DEVICE names, and those that are about GPUs.
OPERATIONS = ["in_every_type", "a_gpu"]
# Those with products of cuBLAS and cuDNN, in which nobody here can mend a race. All others have kernels of the course's alone.
PRODUCTS = ["linear::tests::it_is_its_formula", "conv2d::tests::composed", "cudnn::tests", "not_finite_in_every_type", "definition_in_every_type"]
# Tests of the wrappers that compare with one device, or with other numbers of devices.
WRAPPERS = ["wrappers::with_local_norms", "wrappers::parallel_evaluation_gathers_in_order", "wrappers::by_shard"]
WRAPPERS += ["wrappers::accumulated", "wrappers::own_networks::images_of_any_shape", "is_one_device"]
# A program then says what cuDNN suggests for each product, and what is taken.
TELL = {"COURSE_CUDNN_TELL": "1"}


def steps(device, data, limit):
    """All steps on such a device, with such data; a comparison has so many seconds."""
    on_a_gpu = device == "cuda"
    train = [f"--device={device}", f"--data={data}"]
    small = [*train, "--train-size=6000", "--test-size=1000", "--epochs=2"]
    yield from correct(device)
    if on_a_gpu:
        yield from beside_pytorch_as_it_is(limit)
    yield from laws(small)
    yield from chapters(device, train, small)
    if on_a_gpu:
        yield from busy(train)
        yield from kernels()
        yield from beside_pytorch_in_other_ways(limit)
        yield from under_sanitizer()


def correct(device):
    """Tests of what is to be correct: each operation by itself, before what is made of them."""
    operations = tests(device, "ops", "ops", *OPERATIONS)
    yield operations._replace(environment={**operations.environment, **TELL})
    yield tests(device, "pytorch", "training", "pytorch::")
    yield tests(device, "finite_differences", "training", "finite_differences::")
    yield tests(device, "gpu", "training", "gpu::")
    yield tests(device, "tf32", "tf32")
    yield tests(device, "nccl", "backends")
    # k replicas are one device, and by shard have one hash.
    yield tests(device, "equivalence", "training", "equivalence::")
    yield tests(device, "reproducible", "training", "reproducible::")
    yield tests(device, "wrappers", "training", *WRAPPERS)
    yield tests(device, "precision", "training", "precision::by_shard")


def beside_pytorch_as_it_is(limit):
    """As fast as PyTorch's: what is wanted most, once all is correct."""
    # First of all whether it runs.
    quick = ["--quick", "--only=lenet-step,resnet18-step", "--batch=256", "--precision=f32,bf16"]
    yield step("pytorch-quick", *beside(limit, "eager", *quick, "--output=quick.json"), metrics=False)
    yield beside_pytorch(limit, "eager", "lenet")
    yield beside_pytorch(limit, "eager", "resnet18", 256)


def laws(small):
    """Law 2: k devices are one, in f64. Law 3: one hash, if the GPU adds in one order."""
    for devices in (2, 4):
        yield step(f"law2-f64-{devices}", "scratch-data-parallel", *small, f"--devices={devices}", "--dtype=f64")
    for devices in (1, 2, 4):
        yield step(f"law3-shards-{devices}", "scratch-data-parallel", *small, f"--devices={devices}", "--shards=8")


def chapters(device, train, small):
    """The chapters' programs."""
    on_a_gpu = device == "cuda"
    yield step("ch01", "single-gpu", *train, "--epochs=5")
    if on_a_gpu:
        yield step("ch01-tf32", "single-gpu", *train, "--epochs=5", "--tf32")
    yield step("ch02", "params-and-allreduce", f"--device={device}", "--devices=2")
    yield step("ch04", "scratch-data-parallel", *train, "--devices=2", "--epochs=3")
    yield step("ch05-lenet", "concise-wrapper", *train, "--model=lenet", "--devices=2", "--epochs=2")
    yield step("ch05-resnet18", "concise-wrapper", *train, "--devices=2", "--epochs=1")
    if on_a_gpu:
        yield step("ch05-resnet18-bf16", "concise-wrapper", *train, "--devices=2", "--epochs=1", "--precision=bf16")
    yield step("ch06", "model-parallel", *small, "--devices=2")
    yield step("ch07", "sharded-state", *small, "--devices=2")


def busy(train):
    """Where the time of a step goes on a GPU: a trace of each."""
    once = [*train, "--test-size=500", "--epochs=1"]

    def lenet(precision, program, *chosen):
        name = f"busy-lenet-{precision}"
        return step(name, program, *once, *chosen, f"--trace={name}.json", metrics=False)

    yield lenet("f32", "single-gpu")
    yield lenet("tf32", "single-gpu", "--tf32")
    yield lenet("bf16", "concise-wrapper", "--model=lenet", "--devices=1", "--precision=bf16")

    for precision in PRECISIONS:
        name = f"busy-resnet18-{precision}"
        chosen = "--tf32" if precision == "tf32" else f"--precision={precision}"
        command = [*once, "--train-size=12800", "--devices=1", chosen, f"--trace={name}.json"]
        yield step(name, "concise-wrapper", *command, metrics=False, **TELL)


def kernels():
    """Which kernels PyTorch's steps launch."""
    for precision in PRECISIONS:
        script = ["peers/kernels.py", "--device=cuda", f"--precision={precision}"]
        listed = step(f"kernels-resnet18-{precision}", *script, metrics=False)
        yield listed._replace(interpreter=(sys.executable,))


def beside_pytorch_in_other_ways(limit):
    """Steps beside PyTorch's deterministic ones, with its compiler, and with other switches for speed; larger batches."""
    yield beside_pytorch(limit, "deterministic", "resnet18", 256)
    yield beside_pytorch(limit, "deterministic", "lenet")
    yield from beside_the_compiler(limit, "resnet18", 256)
    yield from beside_the_compiler(limit, "lenet")
    yield beside_pytorch(limit, "tuned", "resnet18", 256, precisions="tf32,bf16")
    yield beside_pytorch(limit, "tuned", "lenet")
    yield beside_pytorch(limit, "eager", "resnet18", 512)
    yield beside_pytorch(limit, "deterministic", "resnet18", 512)
    yield from beside_the_compiler(limit, "resnet18", 512)


def under_sanitizer():
    """Tests under CUDA's compute-sanitizer, where there is one."""
    sanitizer = compute_sanitizer()
    if sanitizer is None:
        return
    # Some tests ask for what cannot be, and are refused.
    memory = ["--report-api-errors=no", "--track-stream-ordered-races=all"]
    races = ["--racecheck-detect-level=error"]
    own = [*OPERATIONS, *(f"--skip={test}" for test in PRODUCTS)]
    yield watched(sanitizer, "memcheck-own", "memcheck", memory, "ops", *own)
    yield watched(sanitizer, "racecheck-own", "racecheck", races, "ops", *own)
    yield watched(sanitizer, "memcheck", "memcheck", memory, "ops", *PRODUCTS)
    yield watched(sanitizer, "memcheck-gpu", "memcheck", memory, "training", "gpu::")
