"""Execute lists of pipelines in PyTorch's own pipelining runtime, and compare the step with ours.

    $PYTHON tests/peers/pipeline_lists.py FILE.csv...

`model-parallel --export FILE.csv` writes a list, and the example `in_pytorch` of stage 6 writes our step beside it, FILE.npz,
and starts this script. Each row of the list is a process over Gloo, which has the units that the row names. PyTorch adds the
messages. Gradients and updated weights are compared in f64: a relative difference above 1e-12 is an error.
"""

import csv
import logging
import multiprocessing
import multiprocessing.connection
import os
import re
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

TOLERANCE = 1e-12
MOST_PROCESSES = 16
# Seconds in which the processes of a list have to end.
LIMIT = 60

try:
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
    from torch.nn.functional import cross_entropy
except (ImportError, OSError) as error:
    sys.exit(
        f"error: {sys.executable}: {error}: lists need NumPy and PyTorch 2.11; "
        "`cargo xtask peers --set-up` installs both, and PYTHON=FILE names a Python that has them"
    )


class BadList(Exception):
    """A list that cannot be executed, in a line."""


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


class Unit(PipelineStage):
    """A unit of the model. PyTorch calls it a stage, and gives a rank any number of stages."""

    def __init__(self, step, unit, units):
        model = build(step, unit)
        rows = len(step["labels"]) // int(step["micro-batches"][0])
        images = torch.empty(rows, *step["images"].shape[1:], dtype=torch.float64)
        outputs = torch.empty(rows, model[-1].weight.shape[1], dtype=torch.float64)
        inputs = torch.empty(rows, model[0].weight.shape[0], dtype=torch.float64)
        # The runtime finds shapes by messages to the next rank, but the next unit may be on any rank.
        shapes = (inputs if unit else images).to("meta"), outputs.to("meta")
        super().__init__(model, unit, units, torch.device("cpu"), *shapes)

    def _get_init_p2p_neighbors_ops(self):
        """Return the first messages between neighbours, which only NCCL needs."""
        return []


def layers_of(step, unit):
    """Return the numbers of a unit's layers. All units have as many."""
    layers = sum(name.startswith("before/") for name in step) // 2
    each = layers // int(step["units"][0])
    return range(unit * each, (unit + 1) * each), layers - 1


def build(step, unit):
    """Build a unit of the model, with the weights before the step."""
    own, last = layers_of(step, unit)
    parameters = [(step[f"before/dense{i}.weight"], step[f"before/dense{i}.bias"]) for i in own]
    layers = (Dense(*both, i == last) for i, both in zip(own, parameters))
    return torch.nn.Sequential(*layers)


def read(file):
    """Read a list: for each row, the unit, the pass and the micro-batch of each cell. Every pass has to be there once."""
    try:
        with open(file, newline="") as text:
            cells = list(csv.reader(text))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadList(error) from error
    if not 1 <= len(cells) <= MOST_PROCESSES:
        raise BadList(f"{len(cells)} rows: a list has 1 to {MOST_PROCESSES}")
    rows, owners = [], {}
    for rank, row in enumerate(cells):
        matches = [re.fullmatch(r"(\d{1,4})([FBIW])(\d{1,4})", cell) for cell in row]
        if None in matches:
            raise BadList(f"{row[matches.index(None)]!r} is no pass such as 2B3")
        rows.append([(int(it[1]), it[2], int(it[3])) for it in matches])
        if not row:
            raise BadList(f"row {rank} has no passes")
        if len(set(row)) < len(row):
            raise BadList(f"row {rank} has a pass twice")
        for unit, _, _ in rows[-1]:
            if owners.setdefault(unit, rank) != rank:
                raise BadList(f"unit {unit} is in rows {owners[unit]} and {rank}")
    passes = {it for row in rows for it in row}
    micro_batches = 1 + max(i for _, _, i in passes)
    for unit in range(1 + max(owners)):
        for i in range(micro_batches):
            backward = [it for it in "BIW" if (unit, it, i) in passes]
            if (unit, "F", i) not in passes or backward not in (["B"], ["I", "W"]):
                raise BadList(
                    f"unit {unit} needs {unit}F{i}, and either {unit}B{i} or {unit}I{i} and {unit}W{i}"
                )
    order = [i for row in rows for unit, it, i in row if (unit, it) == (max(owners), "F")]
    if order != sorted(order):
        # PyTorch keeps the losses as a list, in the order of the passes.
        raise BadList(f"PyTorch needs the forward passes of unit {max(owners)} in ascending order")
    return rows, 1 + max(owners), micro_batches


def execute(rank, file, step, rows, units, micro_batches, port):
    """Execute the row of this rank. Return the worst difference from our step."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    limit = timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", rank=rank, world_size=len(rows), timeout=limit)
    own = sorted({unit for unit, _, _ in rows[rank]})
    stages = [Unit(step, unit, units) for unit in own]

    def loss(logits, labels):
        return cross_entropy(logits, labels, reduction="sum")

    schedule = _PipelineScheduleRuntime(stages, micro_batches, loss, scale_grads=False)
    schedule._load_csv(file)
    images, labels = torch.from_numpy(step["images"]), torch.from_numpy(step["labels"])
    schedule.step(
        *([images] if 0 in own else []),
        **({"target": labels} if units - 1 in own else {}),
    )
    differences = []
    for stage in stages:
        torch.optim.SGD(stage.submod.parameters(), float(step["rate"][0]) / len(labels)).step()
        for i, layer in zip(layers_of(step, stage.stage_index)[0], stage.submod):
            for kind in ["weight", "bias"]:
                tensor = getattr(layer, kind)
                for what, found in [("gradient", tensor.grad), ("after", tensor.data)]:
                    ours = torch.from_numpy(step[f"{what}/dense{i}.{kind}"])
                    differences.append(((found - ours).abs().max() / ours.abs().max()).item())
    dist.barrier()
    dist.destroy_process_group()
    # NaN is larger than every number.
    return max(differences, key=lambda it: (it != it, it))


def answer(pipe, *arguments):
    """Execute a row in a process of its own, and send the difference, or the error in a line."""
    # PyTorch logs the whole list at an error, and Gloo logs lost connections.
    logging.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    try:
        pipe.send(execute(*arguments))
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        pipe.send(f"PyTorch: {lines[0]}")


def difference_of(file):
    """Execute a list, a process for each row. Return the worst difference from our step."""
    rows, units, micro_batches = read(file)
    try:
        step = dict(np.load(file.with_suffix(".npz")))
        size = int(step["units"][0]), int(step["micro-batches"][0])
    except Exception as error:
        raise BadList(f"the example in_pytorch has to write {file.with_suffix('.npz')}") from error
    if size != (units, micro_batches):
        raise BadList("its step is of another list: run the example in_pytorch again")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A fork has PyTorch loaded. Other systems cannot fork a process with threads.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pipes, processes = [], []
    for rank in range(len(rows)):
        pipe, theirs = context.Pipe(duplex=False)
        arguments = (theirs, rank, file, step, rows, units, micro_batches, port)
        process = context.Process(target=answer, args=arguments, daemon=True)
        process.start()
        theirs.close()
        pipes.append(pipe)
        processes.append(process)
    deadline, worst = time.monotonic() + LIMIT, []
    try:
        waiting = list(pipes)
        while waiting:
            left = deadline - time.monotonic()
            ready = multiprocessing.connection.wait(waiting, max(left, 0))
            if not ready:
                raise BadList(f"PyTorch did not end within {LIMIT} s")
            for pipe in ready:
                waiting.remove(pipe)
                try:
                    found = pipe.recv()
                except EOFError:
                    found = f"PyTorch: the process of row {pipes.index(pipe)} was lost"
                if isinstance(found, str):
                    raise BadList(found)
                worst.append(found)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return max(worst, key=lambda it: (it != it, it))


def main():
    """Execute the list of each file."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    errors = []
    for file in map(Path, sys.argv[1:]):
        try:
            difference = difference_of(file)
        except BadList as error:
            errors.append(f"{file}: {error}")
            continue
        is_equal = difference <= TOLERANCE
        verdict = "equal" if is_equal else "DIFFERENT"
        print(f"{file}: {verdict}, worst relative difference {difference:.1e}", flush=True)
        if not is_equal:
            errors.append(f"{file}: PyTorch's step differs from ours by {difference:.1e}")
    sys.exit("\n".join(f"error: {error}" for error in errors) or None)


if __name__ == "__main__":
    main()
