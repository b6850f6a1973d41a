"""The results: what came of each step, in files that are whole after every one."""

import json
import os
import tarfile
from pathlib import Path

from .verdict import NOT_DONE, judge, laws

# A file of the results that is larger is not put into results.tar.gz: something went wrong, and the rest is wanted.
LARGEST = 32 << 20


class Results:
    """What is known of the run, beside what its steps print, in a folder and in an archive of it."""

    def __init__(self, folder, archive, known, chosen):
        self.folder, self.archive = folder, archive
        # What became of each step, and what it printed.
        self.outcomes = {}
        # What is still to be done comes last: nothing, at the end.
        self.document = {**known, "steps": [], "laws": {}, "not_run": [step.name for step in chosen]}

    def add(self, step, ended, seconds, states):
        """Writes down what came of a step, here and in the files; says so. What became of it."""
        output = self.folder / f"{step.name}.txt"
        text = output.read_text(errors="replace")
        outcome, ended = judge(step, ended, text)
        self.outcomes[step.name] = outcome, text
        skipped = NOT_DONE.findall(text)
        self.document["not_run"].remove(step.name)
        self.document["steps"].append(
            {
                "name": step.name,
                "command": step.command(),
                "environment": step.environment,
                "outcome": outcome,
                "ended": ended,
                "seconds": round(seconds, 3),
                "gpu_states": states,
                "skipped": skipped,
                "output": output.name,
            }
        )
        self.document["laws"] = laws(self.outcomes)
        # The files first: they are still wanted when nobody reads what is printed any more.
        self.write()
        print(f"{seconds:7.1f} s  {ended}" + (f", {len(skipped)} skipped" if skipped else ""), flush=True)
        if outcome == "failed":
            for line in text.splitlines()[-5:]:
                print(f"    {line}")
        return outcome

    def write(self):
        """Brings the files up to date."""
        write(self.folder / "results.json", self.document)
        pack(self.folder, self.archive)

    def sum_up(self):
        """Says what became of all steps: whether all is well."""
        for law, holds in self.document["laws"].items():
            print(f"{law}: {'holds' if holds else 'DOES NOT HOLD'}")
        became = [outcome for outcome, _ in self.outcomes.values()]
        late, absent = became.count("ran out of time"), became.count("not there")
        print(
            f"{became.count('succeeded')} of {len(self.document['steps'])} steps succeeded"
            + (f", {late} ran out of time" if late else "")
            + (f", {absent} without a tool that knows the GPU" if absent else "")
            + f": {self.folder / 'results.json'}, all of it in {self.archive}"
        )
        return "failed" not in became and all(self.document["laws"].values())


def write(path, document):
    """Writes the file under another name first: it is whole, or the one before."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document, indent=2) + "\n")
    os.replace(unfinished, path)


def pack(results, packed):
    """Puts all that is in the folder into one file, in place of the one before."""
    unfinished = packed.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w:gz") as archive:
        for file in sorted(results.rglob("*")):
            wanted = file.suffix != ".unfinished" and file != packed
            if wanted and file.is_file() and file.stat().st_size <= LARGEST:
                archive.add(file, arcname=Path("results", file.relative_to(results)))
    os.replace(unfinished, packed)
