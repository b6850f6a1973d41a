"""The session that a step has: all of its processes, whichever groups they are in, and who ends them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# Seconds that all processes of a step have to end when they are asked to, and to be gone when they are not asked.
GRACE, LAST_GRACE = 5, 10


def guard():
    """A process that ends the session of the number that it is told, once this program has ended: even if by SIGKILL.

    The kernel tells a step's first process alone (PDEATHSIG), and who watches a program may leave it behind. It has a
    session of its own, so that nothing which ends this program's reaches it.
    """
    # What it needs is Python's own, and is here sooner without looking for packages.
    command = [sys.executable, "-S", __file__]
    quiet = subprocess.DEVNULL
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, bufsize=0, stdout=quiet, stderr=quiet, start_new_session=True)


def processes(session):
    """The processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # Behind the name, in which anything may stand: state, parent, group, session.
            state, _, _, its = stat.read_text(errors="replace").rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            # It has ended meanwhile.
            continue
        if int(its) == session and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def end(session):
    """Ends all processes of a session, in whatever groups they are: asks them first. How many would not end.

    The one that began it is asked before those that it has started: it should not take them for failures.
    """
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, LAST_GRACE)):
        told, deadline = set(), time.monotonic() + patience
        while (left := processes(session)) and time.monotonic() < deadline:
            for process in sorted(set(left) - told, key=lambda process: process != session):
                told.add(process)
                try:
                    os.kill(process, number)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)
    return len(left)


if __name__ == "__main__":
    # The guard. Nobody else has the other end of its pipe, which is closed with the program that has it.
    told = sys.stdin.read()
    if told:
        end(int(told))
