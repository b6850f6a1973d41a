"""The machine: its GPUs, as nvidia-smi tells, its processor, and which tools and versions it has."""

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from . import Failure
from .libraries import toolkits

# What is asked of nvidia-smi about each GPU.
ASKED = ["name", "driver_version", "memory.total", "compute_cap", "persistence_mode"]
# And before and behind each step: what a time may depend on.
STATE = ["clocks.sm", "power.draw", "temperature.gpu", "clocks_event_reasons.active", "memory.used"]


def nvidia_smi(of, asked):
    """The lines that nvidia-smi answers."""
    command = ["nvidia-smi", f"--query-{of}={','.join(asked)}", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return [line.strip() for line in said.splitlines() if line.strip()]


def keep_awake():
    """Keeps the GPUs as they are between two steps, as long as this program runs.

    When nobody has a GPU's file open, the driver puts it to sleep, unless it is told to persist; whoever comes next waits
    seconds until it is up again. No setting is changed.
    """
    for path in Path("/dev").glob("nvidia[0-9]*"):
        with contextlib.suppress(OSError):
            os.open(path, os.O_RDWR)


def gpus():
    """What nvidia-smi says of each GPU."""
    try:
        return [dict(zip(ASKED, map(str.strip, line.split(",")))) for line in nvidia_smi("gpu", ASKED)]
    except (OSError, subprocess.SubprocessError) as error:
        raise Failure(f"no GPU was found: {error}") from error


def state():
    """How each GPU is at the moment: a line for each, in the order of STATE."""
    try:
        return nvidia_smi("gpu", STATE)
    except (OSError, subprocess.SubprocessError) as error:
        return [f"unknown: {error}"]


def others():
    """The processes that are on the GPUs already, as far as nvidia-smi tells: pid, name, memory."""
    try:
        return nvidia_smi("compute-apps", ["pid", "process_name", "used_memory"])
    except (OSError, subprocess.SubprocessError):
        return []


def description(found, busy):
    """What the results say of the machine, these GPUs and who else is on them among it."""
    return {
        "gpus": found,
        "other_processes": busy,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def processor():
    """The processor's name."""
    try:
        names = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def torch_version():
    """PyTorch's version, if this Python has it: read and not imported, which takes seconds and may fail in any way."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    try:
        # Here it also says for which CUDA it was built.
        told = re.search(r"^__version__ = '(.+)'", Path(torch.origin).with_name("version.py").read_text(), re.MULTILINE)
        return told[1] if told else importlib.metadata.version("torch")
    except (OSError, importlib.metadata.PackageNotFoundError):
        return None


def compute_sanitizer():
    """Where compute-sanitizer is, if it is there."""
    folders = [os.environ.get("PATH", os.defpath), *(f"{toolkit}/bin" for toolkit in toolkits())]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
