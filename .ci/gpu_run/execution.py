"""The execution of one step: its process, its time limit, and what ends it before its time."""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import time

from .session import end, guard

# How a step ended that was ended: by this program, or with it.
OUT_OF_TIME, STOPPED = "not done after", "stopped by"
# What ends this program before its time.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Of Linux: which signal a process gets when whoever started it has ended.
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class Stopped(BaseException):
    """Somebody ends this program, by a signal."""

    def __init__(self, number):
        super().__init__(f"{STOPPED} {signal.Signals(number).name}")
        self.number = number


def stop(number, _frame):
    """Raises it, as what a signal does."""
    # Once: what follows writes down what there is.
    for other in STOPS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def end_with(parent, guard_pipe):
    """What a step's process does first: it will be asked to end when this program has ended, even if by SIGKILL.

    It tells the guard its number itself: this program may be killed before it could.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # Without a guard the step runs as well.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        os.write(guard_pipe, str(os.getpid()).encode())
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def run(command, folder, environment, output, limit):
    """Runs a step, with everything it prints in a file: how it ended, and after how long.

    It has a session of its own. Its processes may be in groups of their own, as sides of a comparison are; a session is
    what they have in common.
    """
    started = time.monotonic()
    with open(output, "w") as file, guard() as guarding:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=functools.partial(end_with, os.getpid(), guarding.stdin.fileno()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"cannot be started: {error}", 0.0
        try:
            try:
                code = process.wait(timeout=limit)
                ended = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
            except subprocess.TimeoutExpired:
                ended = f"{OUT_OF_TIME} {limit} s"
            seconds = time.monotonic() - started
            # Whoever is left would disturb the next step.
            left = end(process.pid)
        except Stopped:
            end(process.pid)
            raise
        process.poll()
        # Nothing is left to it.
        guarding.kill()
    return ended + (f"; {left} of its processes cannot be ended" if left else ""), seconds
