"""The package that the programs came in: for which GPUs it was built, and whether it may be measured with."""

import json
import re
from pathlib import Path

from . import Failure

# Where it was unpacked.
HERE = Path(__file__).resolve().parent.parent
# How the names of steps begin whose times are wanted: they mean something in a build that is fast.
MEASURES = ("pytorch", "compiled", "tuned", "deterministic", "busy", "ch")


def told():
    """What it says of itself: version, commit, profile, and what it was built with."""
    return json.loads((HERE / "package.json").read_text())


def check_capability(package, found):
    """Makes sure that the GPUs take the kernels that were packed: from 9.0 on they are for one architecture alone."""
    digits = re.match(r"\d+", package.get("compute_capability") or "")
    if digits is None:
        return
    built = int(digits[0])
    for gpu in found:
        has = int(gpu["compute_cap"].replace(".", ""))
        if has < built or (built >= 90 and has != built):
            raise Failure(
                f"the kernels in this archive are for compute capability {built / 10}, and {gpu['name']} has "
                f"{gpu['compute_cap']}: pack it with CUDA_COMPUTE_CAP={has}"
            )


def check_profile(package, chosen):
    """Makes sure that what is measured was built to be fast."""
    measuring = [step.name for step in chosen if step.name.startswith(MEASURES)]
    if package["profile"] != "release" and measuring:
        raise Failure(
            f"this package is of the profile {package['profile']}, which is slow, and {measuring[0]} measures: carry one of "
            "the release profile, leave such steps out (--only tests,law), or say --any-profile"
        )
