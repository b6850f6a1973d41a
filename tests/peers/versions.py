"""Print the versions of Python and of what the scripts of this folder use."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version

import torch


def version_of(package):
    """Return a package's version, or nothing where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main():
    """Print one JSON object."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("numpy", "mpi4py", "openmpi"):
        versions[package] = version_of(package)
    if torch.cuda.is_available():
        versions["gpu"] = torch.cuda.get_device_name()
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = str(torch.backends.cudnn.version())
    print(json.dumps(versions))


if __name__ == "__main__":
    main()
