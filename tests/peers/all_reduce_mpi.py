"""Open MPI's Allreduce between two processes, f32, into a buffer of its own: each sum is added up in the next call.

Started by itself it starts mpirun, the one beside this Python or else the one on
the PATH, with two processes that are not tied to cores.
"""

import argparse
import json
import os
import shutil
import sys

import numpy as np
from all_reduce import SIZES, times

RANKS = 2
# Tells a process that mpirun started it.
STARTED = "PEERS_STARTED_BY_MPIRUN"


def launch():
    """Become an mpirun of this very command."""
    mpirun = shutil.which("mpirun", path=os.path.dirname(sys.executable))
    mpirun = mpirun or shutil.which("mpirun")
    if mpirun is None:
        sys.exit("no mpirun beside this Python or on the PATH")
    os.environ[STARTED] = "1"
    flags = ["-n", str(RANKS), "--bind-to", "none"]
    if os.geteuid() == 0:
        # In a container everybody is root; mpirun wants to be told that this is meant.
        flags.append("--allow-run-as-root")
    os.execv(mpirun, [mpirun, *flags, sys.executable, *sys.argv])


def main():
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="not used: MPI starts none")
    parser.add_argument("--repetitions", type=int, default=10, help="timed repetitions")
    args = parser.parse_args()
    if STARTED not in os.environ:
        launch()

    # Importing it starts MPI.
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.size != RANKS:
        sys.exit("mpirun is not of the MPI that mpi4py was built for")
    series = {}
    for name, numbers in SIZES.items():
        buffers = [np.zeros(numbers, np.float32) for _ in range(2)]

        def all_reduce(buffers=buffers):
            world.Allreduce(*buffers)
            buffers.reverse()

        series[name] = times(all_reduce, world.Barrier, numbers, args.repetitions)
    if world.rank == 0:
        print(json.dumps({"seconds": series}), flush=True)


if __name__ == "__main__":
    main()
