"""What a file of PTX says: its functions, their parameters, and variables. PTX is what kernels are compiled to before a
driver knows which GPU they are for.
"""

import re
from dataclasses import dataclass

WIDTHS = {f"{kind}{bits}": bits // 8 for kind in "usbf" for bits in (8, 16, 32, 64)} | {"bf16": 2, "bf16x2": 4}
C_TYPES = {
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    **{"f32": "float", "f64": "double", "bf16": "uint16_t", "pred": "int"},
}


@dataclass
class Parameter:
    """Where a parameter lies among the others, in bytes."""

    name: str
    start: int
    size: int


@dataclass
class Function:
    """A kernel (`entry`), or what kernels call (`func`)."""

    name: str
    is_kernel: bool
    results: list
    parameters: list
    size: int
    body: str


@dataclass
class Constant:
    """A table in the GPU's memory that a file brings along."""

    c_type: str
    count: int
    values: str


def aligned(at, to):
    return (at + to - 1) // to * to


def identifier(name):
    """A name as C takes it."""
    return re.sub(r"\W", "_", name)


def parameters_of(text):
    """The parameters of a list, and how many bytes they take."""
    found, end = [], 0
    for one in filter(None, map(str.strip, text.split(","))):
        pattern = r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr[\s.\w]*\s)?([\w$]+)(?:\[(\d+)\])?"
        alignment, kind, name, count = re.match(pattern, one).groups()
        size, start = WIDTHS[kind] * int(count or 1), aligned(end, int(alignment or WIDTHS[kind]))
        found.append(Parameter(name, start, size))
        end = start + size
    return found, end


def body_at(text, start):
    """Where the block that begins before `start` ends."""
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return end


class Module:
    """A file of PTX. Shared variables of all its functions lie behind each other."""

    def __init__(self, text):
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        self.functions, self.shared, self.constants, self.shared_size = {}, {}, {}, 0
        outside, last = [], 0
        heads = r"\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*\(([^)]*)\)\s*[^{;]*\{"
        for head in re.finditer(heads, text):
            kind, results, name, parameters = head.groups()
            end = body_at(text, head.end())
            found, size = parameters_of(parameters)
            body = text[head.end() : end - 1]
            self.functions[name] = Function(
                name, kind == "entry", parameters_of(results or "")[0], found, size, body
            )
            outside.append(text[last : head.start()])
            last = end
        self.declare(" ".join([*outside, text[last:]]))

    def declare(self, text):
        """Notes the variables that a text declares."""
        pattern = (
            r"(\.extern\s+)?\.(shared|global|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(\[(\d*)\])?"
            r"\s*(?:=\s*(\{[^}]*\}|[^;]*))?;"
        )
        for external, space, alignment, kind, name, brackets, count, values in re.findall(pattern, text):
            if space != "shared":
                self.constants[name] = Constant(C_TYPES[kind], int(count or 1), values)
            elif external or (brackets and not count):
                # As large as the launch says, behind all others.
                self.shared[name] = None
            elif name not in self.shared:
                self.shared[name] = aligned(self.shared_size, int(alignment or 16))
                self.shared_size = self.shared[name] + WIDTHS[kind] * int(count or 1)

    def shared_place(self, name):
        """Where a shared variable begins."""
        place = self.shared[name]
        return self.shared_bytes() if place is None else place

    def shared_bytes(self):
        """How much shared memory is declared, but for what the launch adds."""
        return aligned(self.shared_size, 16)
