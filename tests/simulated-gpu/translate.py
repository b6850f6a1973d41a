"""translate.py FILE.ptx KERNEL OUT.c: one kernel of a file of PTX, and the functions that it calls, as C.

The C file defines the kernel as a function of one thread, and what its launch has to know: where each argument lies, how
much shared memory it declares, and whether its threads wait for each other.
"""

import re
import sys
from pathlib import Path

from instructions import Instructions, Unknown
from ptx import C_TYPES, WIDTHS, Module, identifier


class Translation:
    """A kernel and what it calls."""

    def __init__(self, module, kernel):
        self.module, self.done, self.waits, self.used = module, {}, False, []
        self.need(kernel)

    def need(self, name):
        """Translates a function, unless that is done; its description."""
        function = self.module.functions[name]
        if name not in self.done:
            # A function that calls comes after what it calls.
            text = self.function(function)
            self.done[name] = text
        return function

    def function(self, function):
        module = self.module
        module.declare(function.body)
        one = Instructions(module, self.need)
        one.places |= {parameter.name: f"parameters + {parameter.start}" for parameter in function.parameters}
        one.places |= {result.name: f"result + {result.start}" for result in function.results}
        one.registers = self.registers(function.body)
        lines, local = [], []
        for text in self.instructions(function.body):
            label = re.match(r"([$\w]+):$", text)
            variable = re.match(r"\.(?:local|param)\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?$", text)
            guard = re.match(r"@(!?)(%\w+)\s+(.*)$", text, re.DOTALL)
            if label:
                lines.append(f"{identifier(label[1])}:;")
            elif variable:
                kind, name, count = variable.groups()
                one.places[name] = f"local_{len(local)}"
                size = WIDTHS[kind] * int(count or 1)
                local.append(f"    char local_{len(local)}[{size}] __attribute__((aligned(16)));")
            elif text.startswith("."):
                continue
            elif guard:
                lines.append(f"    if ({guard[1]}{identifier(guard[2])}) {{ {one.statement(guard[3])} }}")
            else:
                lines.append(f"    {one.statement(text)}")
        self.waits |= one.waits
        self.used += one.used
        registers = [f"    {C_TYPES[kind]} {identifier(name)} = 0;" for name, kind in one.registers.items()]
        if function.is_kernel:
            head = "void kernel(char *parameters, struct Thread *thread) {"
        else:
            head = f"static void {identifier(function.name)}(char *parameters, char *result, struct Thread *thread) {{"
        return "\n".join([head, "    uint32_t carry = 0;", *registers, *local, *lines, "}"])

    @staticmethod
    def registers(body):
        """`.reg .f32 %f<16>` declares %f0 to %f15."""
        found = {}
        for kind, names in re.findall(r"\.reg\s+\.(\w+)\s+([^;]*);", body):
            for name in map(str.strip, names.split(",")):
                several = re.match(r"(%?\w+)<(\d+)>$", name)
                numbered = [f"{several[1]}{i}" for i in range(int(several[2]))] if several else [name]
                found |= dict.fromkeys(numbered, kind)
        return found

    @staticmethod
    def instructions(body):
        """Labels, declarations and instructions, in their order. Braces are of groups of operands, or of no meaning."""
        body = re.sub(r"\s+", " ", body)
        for text in re.findall(r"[^;{}]*\{[^{};]*\}[^;{}]*;|[{}]|[^;{}]+;?", body):
            text = text.strip().rstrip(";").strip()
            while label := re.match(r"([$\w]+):(?!:)\s*", text):
                yield f"{label[1]}:"
                text = text[label.end() :]
            if text not in ("", "{", "}"):
                yield text

    def text(self, kernel):
        """The whole C file."""
        function = self.module.functions[kernel]
        tables = []
        for name in dict.fromkeys(self.used):
            constant = self.module.constants[name]
            values = constant.values or "0"
            values = values if values.startswith("{") else f"{{{values}}}"
            tables.append(f"static {constant.c_type} {identifier(name)}[{constant.count}] = {values};")
        starts = ", ".join(str(parameter.start) for parameter in function.parameters) or "0"
        sizes = ", ".join(str(parameter.size) for parameter in function.parameters) or "0"
        return "\n".join(
            [
                '#include "kernel.h"',
                *tables,
                *self.done.values(),
                f"const int arguments = {len(function.parameters)}, starts[] = {{{starts}}}, sizes[] = {{{sizes}}};",
                f"const int bytes = {function.size}, shared = {self.module.shared_bytes()}, waits = {int(self.waits)};",
                "",
            ]
        )


def main():
    source, kernel, target = sys.argv[1:]
    try:
        text = Translation(Module(Path(source).read_text()), kernel).text(kernel)
    except Unknown as error:
        sys.exit(f"{kernel}: not translated: {error}")
    Path(target).write_text(text)


if __name__ == "__main__":
    main()
