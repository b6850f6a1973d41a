"""The verdict on what was run: what became of a step, and whether the course's laws hold."""

import re
from pathlib import Path

from .execution import OUT_OF_TIME, STOPPED

# What a step says of parts of it that were not done.
NOT_DONE = re.compile("SKIPPED: .*")
# What a program of tests says that has none of the names that it was asked for.
NO_TESTS = re.compile(r"^running 0 tests$", re.MULTILINE)
# What compute-sanitizer says of an option that its version does not have.
REFUSED = re.compile(r"^(?:unrecogni[sz]ed option .*|the argument for option .* is invalid.*)$", re.MULTILINE)
# What it says of a GPU that it does not know.
NOT_THERE = re.compile(r"^={9} (.*Device not supported.*)$", re.MULTILINE)
# Anything else that it says, it found: beyond its name, warnings, sums of nothing, and that the tests were ended.
FOUND = re.compile(
    r"^={9} (?!COMPUTE-SANITIZER|Warning|.* SUMMARY: 0 |Error: (?:process didn't|Target application|couldn't find))\S"
    r"|\.\.\. FAILED$",
    re.MULTILINE,
)


def judge(step, ended, text):
    """What has become of a step, and how it ended in words."""
    refused = REFUSED.search(text) if step.watcher else None
    if refused is not None:
        return "failed", f"{Path(step.watcher[0]).name} of this machine refuses an option: {refused[0]}"
    not_there = NOT_THERE.search(text) if step.watcher else None
    if not_there is not None:
        return "not there", f"not there: {not_there[1]}"
    if ended.startswith(STOPPED):
        return "stopped", ended
    if step.may_be_late and ended.startswith(OUT_OF_TIME) and not FOUND.search(text):
        return "ran out of time", f"ran out of time: {ended}, nothing found until then"
    if NO_TESTS.search(text):
        return "failed", f"{ended}, but no test has such a name"
    return "succeeded" if ended == "exit code 0" else "failed", ended


def laws(outcomes):
    """Whether each law that was tried holds, by what became of its steps and what they printed."""
    held, hashes, complete = {}, [], True
    for name, (outcome, text) in outcomes.items():
        succeeded = outcome == "succeeded"
        if outcome == "stopped":
            # Nobody knows.
            continue
        if name.startswith("law2"):
            found = re.search(r"largest weight difference:\s+(\S+)\s+after\s+step\s+1", text)
            small = found is not None and float(found[1]) <= 1e-10
            held[f"{name}: a step is one device's, to 1e-10"] = succeeded and small
        elif name.startswith("law3"):
            hashes += re.findall(r"\bweights ([0-9a-f]{8})\b", text)
            complete = complete and succeeded
    # One alone says nothing.
    if len(hashes) > 1 or not complete:
        held["law3: one hash on any number of devices"] = complete and len(set(hashes)) == 1
    return held
