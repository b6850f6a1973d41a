"""Tests that failed, each run again by itself."""

import re
import time

from .execution import OUT_OF_TIME, STOPPED, run
from .package import HERE

# Seconds of such a test, and of all of those of one program.
ALONE_LIMIT, ALL_ALONE_LIMIT = 60, 120
# The tests that failed, by the list at the end of what a program of tests prints; and any test, as it begins.
FAILED_TESTS = re.compile(r"^failures:\n((?: {4}\S+\n)+)\ntest result: FAILED", re.MULTILINE)
BEGUN = re.compile(r"^test (\S+) \.\.\. ", re.MULTILINE)


def failed_tests(step, ended, text):
    """The tests of a program of tests that failed, or the one in which it crashed."""
    if not step.program.startswith("tests/") or step.watcher or ended.startswith((OUT_OF_TIME, STOPPED)):
        return []
    listed = FAILED_TESTS.search(text)
    if listed is not None:
        return listed[1].split()
    return BEGUN.findall(text)[-1:] if ended.startswith("killed by") else []


def run_alone(step, environment, results):
    """Runs each test that failed again, by itself: after an error of a GPU's, all of a process that follows fails."""
    since, result, text = time.monotonic(), results.document["steps"][-1], results.outcomes[step.name][1]
    failed = failed_tests(step, result["ended"], text)
    if not failed:
        return
    result["alone"] = []
    for number, test in enumerate(failed, 1):
        limit = int(min(ALONE_LIMIT, ALL_ALONE_LIMIT - (time.monotonic() - since)))
        if limit < 1:
            break
        alone = step._replace(arguments=["--exact", test, "--nocapture", "--test-threads=1"])
        output = f"{step.name}.alone-{number}.txt"
        ended, seconds = run(alone.command(HERE), results.folder, environment, results.folder / output, limit)
        print(f"    alone, {test}: {ended}", flush=True)
        seconds = round(seconds, 3)
        told = {"test": test, "command": alone.command(), "ended": ended, "seconds": seconds, "output": output}
        result["alone"].append(told)
        results.write()
