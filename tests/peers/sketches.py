"""Run the book's PyTorch sketches on the CPU: processes over Gloo, as torchrun starts them, with tiny data.

    $PYTHON tests/peers/sketches.py [PAGE...]

A sketch leaves out its surroundings, so `surroundings` has the names that it takes for granted. Afterwards the page's
check asks for the result. "cuda" becomes "cpu". A sketch that needs GPUs or another framework all the same is only parsed.
"""

import copy
import os
import signal
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from signatures import sketches
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import ProcessException
from torch.nn import Embedding, LayerNorm, Linear, Module, Parameter, ReLU, Sequential
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# What a sketch names, and what it needs for that.
NEEDS = {
    "cuda:": "a GPU",
    "cuda.": "a GPU",
    "device_ids": "a GPU",
    '"nccl"': "NCCL",
    "tf.": "TensorFlow",
    "TF_CONFIG": "TensorFlow",
    "jax.": "JAX",
    "(2, 4)": "eight processes, and chapter 6b has a mesh of four",
}
# Chapter 6b's mesh has two axes.
WORLD_SIZES = {"ch06b-tensor-parallel": 4}
# Seconds after which a page's processes are ended.
PATIENCE = 120
LEARNING_RATE = 0.1
SAMPLES = 16


class Model(Sequential):
    """Two dense layers."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__(Linear(4, 8), ReLU(), Linear(8, 3))

    @property
    def layers(self):
        """Return the layers that have parameters."""
        return [self[0], self[2]]


def samples():
    """Return the same inputs and labels in every process."""
    torch.manual_seed(2)
    return torch.rand(SAMPLES, 4), torch.randint(3, (SAMPLES,))


def batches():
    """Return a loader of two batches."""
    return DataLoader(TensorDataset(*samples()), SAMPLES // 2)


def stage_of(model, rank):
    """Return the layers of one of two stages."""
    layers = list(model)
    return Sequential(*(layers[:2] if rank == 0 else layers[2:]))


class Gpt(Module):
    """A GPT of one block: 8 tokens in the vocabulary, width 8, heads of 4 features."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__()
        self.embedding, self.positions = Embedding(8, 8), Parameter(torch.randn(6, 8))
        self.norm, self.query, self.key, self.value = LayerNorm(8), Linear(8, 8), Linear(8, 8, bias=False), Linear(8, 8)
        self.output, self.up, self.down, self.head = Linear(8, 8), Linear(8, 32), Linear(32, 8), Linear(8, 8, bias=False)

    def forward(self, tokens):
        """Return the logits of the next tokens."""
        x = self.embedding(tokens) + self.positions
        read = self.norm(x)
        by_head = [layer(read).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        mixed = scaled_dot_product_attention(*by_head, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        x = x + self.down(gelu(self.up(self.norm(x))))
        return self.head(self.norm(x))


def texts():
    """Return tokens, and the next tokens."""
    torch.manual_seed(2)
    windows = torch.randint(8, (4, 7))
    return windows[:, :-1], windows[:, 1:]


def exported_list(rank):
    """Write the list of 1F1B for two stages and four micro-batches, as `model-parallel --export` does."""
    file = f"{tempfile.gettempdir()}/sketches-{os.environ['MASTER_PORT']}-{rank}.csv"
    with open(file, "w") as text:
        text.write("0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")
    return file


def surroundings(rank, world_size):
    """Return what the sketches take for granted."""
    model = Model()
    layers = stage_of(model, rank)
    # The data axis is the first of two: ranks 0 and 1 have the first half.
    tokens, labels = (part.chunk(2)[rank // 2 % 2] for part in texts())
    return globals() | {
        "dataset": TensorDataset(*samples()),
        "device": torch.device("cpu"),
        "epochs": 2,
        "exported": exported_list(rank),
        "folder": f"{tempfile.gettempdir()}/sketches-{os.environ['MASTER_PORT']}",
        "global_batch": SAMPLES // 2,
        "gpt": Gpt(),
        "labels": labels,
        "learning_rate": LEARNING_RATE,
        "loader": batches(),
        "loss_fn": cross_entropy,
        "model": model,
        "my_layers": layers,
        "optimizer": SGD(layers.parameters(), lr=LEARNING_RATE),
        "rank": rank,
        "tokens": tokens,
        "units": [Sequential(model[0], ReLU()), model[2]],
        "world_size": world_size,
    }


def whole_step(model, images, labels):
    """Make a step of one device on a whole batch."""
    cross_entropy(model(images), labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= LEARNING_RATE * parameter.grad
            parameter.grad = None


def assert_same(model, other):
    """Compare the parameters of two models."""
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def assert_replicas(model):
    """Check that every rank has the parameters of rank 0."""
    first = copy.deepcopy(model)
    for parameter in first.parameters():
        dist.broadcast(parameter.detach(), 0)
    assert_same(model, first)


def single_gpu(names):
    """Chapter 1: a step on a whole batch."""
    images, labels = samples()
    model, expected = Model(), Model()
    whole_step(expected, images, labels)
    names["train_batch"](model, images, labels, LEARNING_RATE, SAMPLES)
    assert_same(model, expected)


def all_reduce(names):
    """Chapter 2: an independent copy, and a sum."""
    model = Model()
    copies = names["get_params"](list(model.parameters()), "cpu")
    assert all(copied.is_leaf and copied.requires_grad for copied in copies)
    with torch.no_grad():
        copies[0].zero_()
    assert_same(model, Model())
    assert names["tensor"].tolist() == [[3.0, 3.0]]


def split_batch(names):
    """Chapter 3: shards that differ by a sample at most; and epochs after which replicas agree."""
    images, labels = samples()
    shards = names["split_batch"](images, labels, 5)
    assert [len(labels) for _, labels in shards] == [4, 3, 3, 3, 3]
    assert torch.equal(torch.cat([images for images, _ in shards]), images)
    assert torch.equal(torch.cat([labels for _, labels in shards]), labels)
    assert_replicas(names["model"])


def data_parallel(names):
    """Chapter 4: a step on uneven shards is a step on the whole batch."""
    images, labels = samples()
    model, expected = Model(), Model()
    whole_step(expected, images, labels)
    part = slice(0, 5) if names["rank"] == 0 else slice(5, None)
    names["train_batch"](model, images[part], labels[part], LEARNING_RATE, SAMPLES)
    assert_same(model, expected)


def wrapper(names):
    """Chapter 5: replicas agree, and have learned."""
    assert_replicas(names["network"])
    assert names["loss"].item() < 0.5, names["loss"]


def pipeline(names):
    """Chapter 6: the steps of a pipeline, and of a list, are steps of one device on the whole batch."""
    expected = Model()
    for images, labels in batches():
        whole_step(expected, images, labels)
    assert_same(names["my_layers"], stage_of(expected, names["rank"]))
    images, labels = samples()
    whole_step(expected, images, labels)
    names["optimizer"].zero_grad()
    names["schedule"].step(*([images] if names["rank"] == 0 else []), **({"target": labels} if names["rank"] == 1 else {}))
    names["optimizer"].step()
    assert_same(names["my_layers"], stage_of(expected, names["rank"]))


def mesh(names):
    """Chapter 6b: both axes cut the matrices, and the gradients are those of one device on the whole batch."""
    expected = Gpt()
    tokens, labels = texts()
    cross_entropy(expected(tokens).flatten(0, 1), labels.flatten()).backward()
    for (name, parameter), other in zip(names["gpt"].named_parameters(), expected.parameters(), strict=True):
        parts = 2 if "norm" in name or name in ("positions", "output.bias", "down.bias") else 4
        assert parameter.to_local().numel() * parts == parameter.numel(), name
        torch.testing.assert_close(parameter.grad.full_tensor(), other.grad)


def sharded(names):
    """Chapter 7: a step on chunks, with recomputation, is a step of one device on the whole batch."""
    images, labels = samples()
    expected = Model()
    optimizer = torch.optim.AdamW(expected.parameters(), lr=LEARNING_RATE)
    cross_entropy(expected(images), labels).backward()
    optimizer.step()
    share = slice(names["rank"] * SAMPLES // 2, (names["rank"] + 1) * SAMPLES // 2)
    cross_entropy(names["model"](images[share]), labels[share]).backward()
    names["optimizer"].step()
    for parameter, other in zip(names["model"].parameters(), expected.parameters(), strict=True):
        assert parameter.to_local().numel() < parameter.numel()
        torch.testing.assert_close(parameter.full_tensor(), other.detach())


def other_frameworks(names):
    """FSDP: the optimizer has half of the parameters. Checkpoints: each rank has written a file."""
    assert len([name for name in os.listdir(names["folder"]) if name.endswith(".distcp")]) == dist.get_world_size()
    for parameter in names["optimizer"].param_groups[0]["params"]:
        assert parameter.to_local().shape[0] in (parameter.shape[0] // 2, parameter.shape[0] // 2 + 1)


CHECKS = {
    "ch01-single-gpu": single_gpu,
    "ch02-all-reduce": all_reduce,
    "ch03-split-batch": split_batch,
    "ch04-data-parallel": data_parallel,
    "ch05-concise-wrapper": wrapper,
    "ch06-model-parallel": pipeline,
    "ch06b-tensor-parallel": mesh,
    "ch07-sharded-state": sharded,
    "from-other-frameworks": other_frameworks,
}


def run_page(rank, page, world_size, codes, port):
    """Run the sketches of a page as one rank, then the check."""
    signal.alarm(PATIENCE)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    torch.set_num_threads(1)
    if not any("init_process_group" in code for code in codes):
        dist.init_process_group("gloo")
    names = surroundings(rank, world_size)
    for code in codes:
        exec(compile(code, f"{page}.md", "exec"), names)
    CHECKS[page](names)
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    """Return a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    """Parse all sketches, and run those that can run here."""
    pages = {}
    for page, line, code in sketches():
        code = code.replace('"cuda"', '"cpu"')
        compile(code, f"{page}.md", "exec")
        needs = next((needs for word, needs in NEEDS.items() if word in code), None)
        if needs:
            print(f"– {page}.md:{line}: parsed only, it needs {needs}")
        else:
            pages.setdefault(page, []).append((line, code))
    assert pages.keys() == CHECKS.keys(), f"pages with sketches: {sorted(pages)}"
    # Chapter 3's loop calls the step of chapter 4.
    step = [(line, code) for line, code in pages["ch04-data-parallel"] if "def train_batch" in code]
    failed = []
    for page in sys.argv[1:] or pages:
        lines = ", ".join(str(line) for line, _ in pages[page])
        world_size = WORLD_SIZES.get(page, 2)
        before = step if page == "ch03-split-batch" else []
        codes = [code for _, code in before + pages[page]]
        try:
            mp.start_processes(run_page, (page, world_size, codes, free_port()), world_size, start_method="fork")
            print(f"✓ {page}.md:{lines}: run on {world_size} processes", flush=True)
        except ProcessException as failure:
            print(f"✗ {page}.md:{lines}: {str(failure).strip()}", flush=True)
            failed.append(page)
    sys.exit(f"{len(failed)} pages have sketches that fail" if failed else None)


if __name__ == "__main__":
    main()
