"""Execute our schedules in PyTorch's own pipelining runtime, and compare the step with ours.

    $PYTHON tests/peers/pipeline_lists.py FOLDER...

`cargo run --release -p model-parallel --example in_pytorch` writes a FOLDER. Each row of its list.csv is a process over
Gloo, which has the parts that the row names. PyTorch adds the messages. Gradients and updated weights are compared in f64:
a relative difference above 1e-12 is an error.
"""

import csv
import os
import socket
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import cross_entropy

TOLERANCE = 1e-12


class Dense(torch.nn.Module):
    """A layer of our dense stack: x · weight + bias, and a relu except after the last layer."""

    def __init__(self, weight, bias, is_last):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(weight))
        self.bias = torch.nn.Parameter(torch.from_numpy(bias))
        self.is_last = is_last

    def forward(self, x):
        """Compute the outputs of a batch."""
        y = x.flatten(1) @ self.weight + self.bias
        return y if self.is_last else y.relu()


def part_of(step, part):
    """Build a part of the model, with the weights before the step."""
    layers = sum(name.startswith("before/") for name in step) // 2
    first = [*step["first layers"], layers]
    return torch.nn.Sequential(
        *(
            Dense(
                step[f"before/dense{i}.weight"],
                step[f"before/dense{i}.bias"],
                i == layers - 1,
            )
            for i in range(first[part], first[part + 1])
        )
    )


def execute(rank, folder, rows, port, worst):
    """Execute the row of this rank, and add its worst difference to the list."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=len(rows))
    torch.set_num_threads(1)
    step = dict(np.load(folder / "step.npz"))
    parts = len(step["first layers"])
    own = sorted({int(cell.rstrip("0123456789")[:-1]) for cell in rows[rank]})
    models = {part: part_of(step, part) for part in own}
    cpu = torch.device("cpu")
    stages = [PipelineStage(models[part], part, parts, cpu) for part in own]
    micro_batches = len({cell.split("F")[1] for cell in rows[rank] if "F" in cell})

    def loss(logits, labels):
        return cross_entropy(logits, labels, reduction="sum")

    schedule = _PipelineScheduleRuntime(stages, micro_batches, loss, scale_grads=False)
    schedule._load_csv(folder / "list.csv")
    images, labels = torch.from_numpy(step["images"]), torch.from_numpy(step["labels"])
    schedule.step(
        *([images] if 0 in own else []),
        **({"target": labels} if parts - 1 in own else {}),
    )
    differences = []
    for part, model in models.items():
        torch.optim.SGD(model.parameters(), float(step["rate"][0]) / len(labels)).step()
        for i, layer in enumerate(model, step["first layers"][part]):
            for kind in ["weight", "bias"]:
                tensor = getattr(layer, kind)
                for what, found in [("gradient", tensor.grad), ("after", tensor.data)]:
                    ours = torch.from_numpy(step[f"{what}/dense{i}.{kind}"])
                    differences.append(((found - ours).abs().max() / ours.abs().max()).item())
    worst.append(max(differences))
    dist.barrier()
    dist.destroy_process_group()


def main():
    """Execute the list of each folder."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    failed = False
    for folder in map(Path, sys.argv[1:]):
        with open(folder / "list.csv", newline="") as file:
            rows = list(csv.reader(file))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with mp.Manager() as manager:
            worst = manager.list()
            mp.spawn(execute, (folder, rows, port, worst), nprocs=len(rows))
            difference = max(worst)
        verdict = "equal" if difference <= TOLERANCE else "DIFFERENT"
        failed |= difference > TOLERANCE
        print(f"{folder}: {verdict}, worst relative difference {difference:.1e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
