"""NVIDIA's libraries: in which folders the packed programs find them."""

import importlib.util
import os
import re
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

from . import Failure

GIVEN_BY_THE_DRIVER = "libcuda.so.1"


def toolkits():
    """Where CUDA is installed, if it is."""
    return [os.environ.get("CUDA_HOME", "/usr/local/cuda"), "/usr/local/cuda"]


def loader_says(programs, folders):
    """The libraries that programs ask for, and where each is found."""
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}
    found = {}
    for program in programs:
        said = subprocess.run(["ldd", str(program)], env=environment, capture_output=True, text=True, check=False)
        for name, where in re.findall(r"^\s*(\S+) => (not found|/\S+)", said.stdout, re.MULTILINE):
            found[name] = None if where == "not found" else where
    return found


def missing(libraries):
    """The names of those that are found nowhere."""
    return sorted(name for name, where in libraries.items() if where is None)


def package_folders():
    """The folders of NVIDIA's libraries among this Python's packages; those beside PyTorch come first."""
    packages = sorted({*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_paths()["purelib"]})
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        packages.insert(0, str(Path(torch.origin).parent.parent))
    return [folder for package in packages for folder in sorted(Path(package, "nvidia").glob("*/lib"))]


def library_folders(programs):
    """The folders to name in LD_LIBRARY_PATH, and where each of NVIDIA's libraries is found with them."""
    given = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    installed = [Path(toolkit, lib) for toolkit in toolkits() for lib in ("lib64", "lib")]
    packages = package_folders()
    folders, candidates = [], [*installed, *packages]

    def name_holder(candidates, holds):
        holder = next((str(folder) for folder in candidates if holds(folder)), None)
        if holder is not None and holder not in folders:
            folders.append(holder)

    if importlib.util.find_spec("torch"):
        # PyTorch loads those of its packages. Both sides of a comparison use the same ones, whatever the system has.
        candidates = [*packages, *installed]
        for name in sorted(loader_says(programs, given)):
            name_holder(packages, lambda folder: (folder / name).exists())
    folders += (folder for folder in given if folder not in folders)
    for name in missing(loader_says(programs, folders)):
        name_holder(candidates, lambda folder: (folder / name).exists())
    found = loader_says(programs, folders)
    absent = missing(found)
    if GIVEN_BY_THE_DRIVER in absent:
        raise Failure(f"{GIVEN_BY_THE_DRIVER} is not there: it comes with NVIDIA's driver, which this machine lacks")
    if absent:
        raise Failure(
            f"{', '.join(absent)} not found on the system, in /usr/local/cuda, or among the packages of "
            f"{sys.executable}: name their folders in LD_LIBRARY_PATH, or run this with a Python that has PyTorch"
        )
    nvidias = re.compile(r"lib(cuda|cu[a-z]+|nv[a-z]+|nccl)\b")
    return folders, {name: where for name, where in sorted(found.items()) if nvidias.match(name)}
