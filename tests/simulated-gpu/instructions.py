"""PTX's instructions as statements of C.

Registers are variables of the type that they are declared with. An instruction looks at the bits of its operands as its
own type says, and those are not always the same: NVIDIA's compiler keeps floats in registers of bits.
"""

import re

from ptx import C_TYPES, WIDTHS, aligned, identifier

FLOATS = ("f32", "f64")
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
PRODUCTS = {"u16": "uint32_t", "s16": "int32_t", "u32": "uint64_t", "s32": "int64_t"} | {
    "u64": "unsigned __int128",
    "s64": "__int128",
}
ROUNDINGS = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
FUNCTIONS = {"sqrt": "sqrt", "ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}
# In the order in which launches number them.
SHUFFLES = ("bfly", "down", "up", "idx")
SPACES = ("param", "global", "shared", "local", "const")


class Unknown(Exception):
    """What is not translated."""


def arguments_of(text):
    """The operands of an instruction: commas within brackets do not count."""
    found, depth, one = [], 0, ""
    for character in text:
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth == 0:
            found.append(one.strip())
            one = ""
        else:
            one += character
    return [*found, one.strip()] if one.strip() else found


class Instructions:
    """Those of one function. `registers`: the type of each; `places`: where its parameters and local variables lie."""

    def __init__(self, module, need):
        self.module, self.need = module, need
        self.registers, self.places, self.used, self.waits = {}, {}, [], False

    # Operands

    def value(self, operand, kind):
        """An operand, as a value of a type."""
        operand, c_type = operand.strip(), C_TYPES[kind]
        special = re.match(r"%(tid|ntid|ctaid|nctaid)\.([xyz])$", operand)
        if special:
            return f"(({c_type})thread->{special[1]}[{'xyz'.index(special[2])}])"
        if operand == "%laneid":
            return "(thread->lane)"
        bits = re.match(r"0([fFdD])([0-9a-fA-F]+)$", operand)
        if bits:
            literal = f"0x{bits[2]}ull"
            return f"as_{kind}({literal})" if kind in FLOATS else f"(({c_type}){literal})"
        if re.match(r"-?(0x[0-9a-fA-F]+|\d+)U?$", operand):
            return f"(({c_type}){operand.rstrip('U')}ll)"
        if operand in self.registers:
            return self.register(operand, kind)
        if operand in self.module.shared:
            return f"(({c_type}){self.module.shared_place(operand)})"
        if operand in self.places:
            return f"(({c_type})(uintptr_t)({self.places[operand]}))"
        if operand in self.module.constants:
            self.used.append(operand)
            return f"(({c_type})(uintptr_t){identifier(operand)})"
        raise Unknown(f"operand {operand}")

    def register(self, name, kind):
        held, variable = self.registers[name], identifier(name)
        if kind == "pred" or (kind in FLOATS and held == kind):
            return variable
        if kind in FLOATS:
            return f"as_{kind}({variable})"
        if held in FLOATS:
            return f"(({C_TYPES[kind]})bits_{held}({variable}))"
        return f"(({C_TYPES[kind]}){variable})"

    def set(self, name, kind, value):
        """Puts a value of a type into a register."""
        name = name.strip()
        if name == "_":
            return f"(void)({value});"
        held, variable = self.registers[name], identifier(name)
        if kind == "pred" or held == kind:
            return f"{variable} = {value};"
        if kind in FLOATS:
            return f"{variable} = bits_{kind}({value});"
        if held in FLOATS:
            return f"{variable} = as_{held}({value});"
        # A narrower number is extended as its own type says.
        return f"{variable} = ({C_TYPES[held]})({C_TYPES[kind]})({value});"

    def address(self, operand, space):
        base, offset = re.match(r"\[\s*([^\]+]+?)\s*(?:\+\s*(-?\w+))?\s*\]$", operand).groups()
        if base in self.places:
            return f"({self.places[base]} + ({offset or 0}))"
        place = f"{self.value(base, 'u64')} + ({offset or 0})"
        # Addresses of shared memory count from its beginning.
        return f"(thread->shared + (uint32_t)({place}))" if space == "shared" else f"((char *)(uintptr_t)({place}))"

    # Instructions

    def statement(self, text):
        """An instruction without its guard."""
        name, rest = re.match(r"(\S+)\s*(.*)$", text, re.DOTALL).groups()
        operation, *modifiers = name.split(".")
        kind, operands = (modifiers or [""])[-1], arguments_of(rest)
        method = getattr(self, f"do_{operation}", None)
        if method is None:
            raise Unknown(text)
        try:
            return method(kind, modifiers, operands)
        except (KeyError, IndexError, StopIteration, ValueError) as error:
            raise Unknown(f"{text}: {error!r}") from error

    def unary(self, kind, operands, formula):
        if kind == "bf16":
            return self.set(operands[0], kind, f"to_bf16({formula.format(f'from_bf16({self.value(operands[1], kind)})')})")
        return self.set(operands[0], kind, formula.format(self.value(operands[1], kind)))

    def binary(self, kind, modifiers, operands, formula):
        a, b = (self.value(operand, "b32" if kind == "bf16x2" else kind) for operand in operands[1:3])
        if kind == "bf16x2":
            halves = [
                f"(uint32_t)to_bf16({formula.format(f'from_bf16({a} >> {by})', f'from_bf16({b} >> {by})')}) << {by}"
                for by in (0, 16)
            ]
            return self.set(operands[0], "b32", " | ".join(f"({half})" for half in halves))
        if kind == "bf16":
            a, b = f"from_bf16({a})", f"from_bf16({b})"
        result = formula.format(a, b)
        if "NaN" in modifiers:
            result = f"(isnan({a}) || isnan({b}) ? NAN : {result})"
        return self.set(operands[0], kind, f"to_bf16({result})" if kind == "bf16" else result)

    def with_carry(self, modifiers, operands, sum_):
        keep = "carry = (wide >> 32) & 1;" if "cc" in modifiers else ""
        return f"{{ uint64_t wide = {sum_}; {keep} {self.set(operands[0], 'u32', 'wide')} }}"

    def carried(self, modifiers, operands, sign, carry):
        a, b = (self.value(operand, "u32") for operand in operands[1:3])
        return self.with_carry(modifiers, operands, f"(uint64_t){a} {sign} {b} {carry}")

    def do_add(self, kind, modifiers, operands):
        if "cc" in modifiers:
            return self.carried(modifiers, operands, "+", "")
        return self.binary(kind, modifiers, operands, "{} + {}")

    def do_sub(self, kind, modifiers, operands):
        if "cc" in modifiers:
            return self.carried(modifiers, operands, "-", "")
        return self.binary(kind, modifiers, operands, "{} - {}")

    def do_addc(self, _, modifiers, operands):
        return self.carried(modifiers, operands, "+", "+ carry")

    def do_subc(self, _, modifiers, operands):
        return self.carried(modifiers, operands, "-", "- carry")

    def do_mul(self, kind, modifiers, operands):
        if kind not in PRODUCTS:
            return self.binary(kind, modifiers, operands, "{} * {}")
        return self.product(kind, modifiers, operands, None)

    def do_mad(self, kind, modifiers, operands):
        if "cc" in modifiers:
            return self.long_product(modifiers, operands, "0")
        return self.product(kind, modifiers, operands, operands[3])

    def do_madc(self, _, modifiers, operands):
        return self.long_product(modifiers, operands, "carry")

    def product(self, kind, modifiers, operands, added):
        a, b = (self.value(operand, kind) for operand in operands[1:3])
        result = f"(({PRODUCTS[kind]}){a} * {b})"
        if "hi" in modifiers:
            result = f"({result} >> {WIDTHS[kind] * 8})"
        kind = WIDER[kind] if "wide" in modifiers else kind
        if added is not None:
            result = f"({result} + {self.value(added, kind)})"
        return self.set(operands[0], kind, f"({C_TYPES[kind]}){result}")

    def long_product(self, modifiers, operands, carry):
        a, b, c = (self.value(operand, "u32") for operand in operands[1:4])
        half = ">> 32" if "hi" in modifiers else "& 0xffffffffull"
        return self.with_carry(modifiers, operands, f"(((uint64_t){a} * {b}) {half}) + {c} + {carry}")

    def do_fma(self, kind, modifiers, operands):
        a, b, c = (self.value(operand, kind) for operand in operands[1:4])
        if kind == "bf16":
            return self.set(operands[0], kind, f"bf16_of_f64((double)from_bf16({a}) * from_bf16({b}) + from_bf16({c}))")
        name = "fma_down" if "rm" in modifiers else {"f32": "fmaf", "f64": "fma"}[kind]
        return self.set(operands[0], kind, f"{name}({a}, {b}, {c})")

    def do_div(self, kind, modifiers, operands):
        whole = kind not in FLOATS
        return self.binary(kind, modifiers, operands, "({1} == 0 ? 0 : {0} / {1})" if whole else "{} / {}")

    def do_rem(self, kind, modifiers, operands):
        return self.binary(kind, modifiers, operands, "({1} == 0 ? 0 : {0} % {1})")

    def do_min(self, kind, modifiers, operands):
        whole = kind in PRODUCTS
        return self.binary(kind, modifiers, operands, "({0} < {1} ? {0} : {1})" if whole else "fmin({}, {})")

    def do_max(self, kind, modifiers, operands):
        whole = kind in PRODUCTS
        return self.binary(kind, modifiers, operands, "({0} > {1} ? {0} : {1})" if whole else "fmax({}, {})")

    def do_neg(self, kind, _, operands):
        return self.unary(kind, operands, "-{}")

    def do_abs(self, kind, _, operands):
        return self.unary(kind, operands, "({0} < 0 ? -{0} : {0})" if kind in PRODUCTS else "fabs({})")

    def do_rcp(self, kind, _, operands):
        return self.unary(kind, operands, "1 / {}")

    def do_rsqrt(self, kind, _, operands):
        return self.unary(kind, operands, "1 / sqrt({})")

    def do_copysign(self, kind, _, operands):
        return self.set(operands[0], kind, f"copysign({self.value(operands[2], kind)}, {self.value(operands[1], kind)})")

    def __getattr__(self, name):
        function = FUNCTIONS.get(name.removeprefix("do_"))
        if function is None:
            raise AttributeError(name)
        suffix = lambda kind: "f" if kind == "f32" else ""
        return lambda kind, _, operands: self.unary(kind, operands, f"{function}{suffix(kind)}({{}})")

    # Bits

    def do_and(self, kind, modifiers, operands):
        return self.binary(kind, modifiers, operands, "({} && {})" if kind == "pred" else "{} & {}")

    def do_or(self, kind, modifiers, operands):
        return self.binary(kind, modifiers, operands, "({} || {})" if kind == "pred" else "{} | {}")

    def do_xor(self, kind, modifiers, operands):
        return self.binary(kind, modifiers, operands, "(!{} != !{})" if kind == "pred" else "{} ^ {}")

    def do_not(self, kind, _, operands):
        return self.unary(kind, operands, "!{}" if kind == "pred" else "~{}")

    def do_shl(self, kind, _, operands):
        value, by, bits = self.value(operands[1], kind), self.value(operands[2], "u32"), WIDTHS[kind] * 8
        return self.set(operands[0], kind, f"({by} >= {bits}u ? 0 : {value} << {by})")

    def do_shr(self, kind, _, operands):
        value, by, bits = self.value(operands[1], kind), self.value(operands[2], "u32"), WIDTHS[kind] * 8
        rest = f"{value} >> {bits - 1}" if kind.startswith("s") else "0"
        return self.set(operands[0], kind, f"({by} >= {bits}u ? {rest} : {value} >> {by})")

    def do_bfi(self, kind, _, operands):
        field, into = (self.value(operand, kind) for operand in operands[1:3])
        start, length = (self.value(operand, "u32") for operand in operands[3:5])
        return self.set(operands[0], kind, f"inserted({field}, {into}, {start}, {length})")

    def do_clz(self, kind, _, operands):
        value, bits = self.value(operands[1], kind), WIDTHS[kind] * 8
        return self.set(operands[0], "u32", f"({value} ? __builtin_clzll({value}) - {64 - bits} : {bits})")

    # Choices and conversions

    def do_setp(self, kind, modifiers, operands):
        compare, (a, b) = modifiers[0], (self.value(operand, kind) for operand in operands[1:3])
        if kind == "bf16":
            a, b = f"from_bf16({a})", f"from_bf16({b})"
        unordered = f"isnan({a}) || isnan({b})"
        if compare == "nan":
            result = f"({unordered})"
        elif compare == "num":
            result = f"!({unordered})"
        elif compare in COMPARISONS:
            result = f"({a} {COMPARISONS[compare]} {b})"
            if compare == "ne" and kind in (*FLOATS, "bf16"):
                result = f"({a} < {b} || {a} > {b})"
        else:
            result = f"({unordered} || {a} {COMPARISONS[compare.removesuffix('u')]} {b})"
        (first, *second) = operands[0].split("|")
        if not second:
            return self.set(first, "pred", result)
        return f"{{ int is = {result}; {self.set(first, 'pred', 'is')} {self.set(second[0], 'pred', '!is')} }}"

    def do_selp(self, kind, _, operands):
        a, b = (self.value(operand, kind) for operand in operands[1:3])
        return self.set(operands[0], kind, f"{identifier(operands[3])} ? {a} : {b}")

    def do_cvt(self, _, modifiers, operands):
        target, source = modifiers[-2], modifiers[-1]
        value = self.value(operands[1], source)
        if source == "bf16":
            value, source = f"from_bf16({value})", "f32"
        rounding = next((ROUNDINGS[one] for one in modifiers if one in ROUNDINGS), None)
        if rounding is not None and source in FLOATS:
            value = f"{rounding}({value})"
        if source in FLOATS and target not in (*FLOATS, "bf16"):
            return self.set(operands[0], target, f"to_{target}({value})")
        if "sat" in modifiers:
            value = f"saturated({value})"
        if target == "bf16":
            return self.set(operands[0], target, f"bf16_of_f64({value})")
        return self.set(operands[0], target, f"({C_TYPES[target]}){value}")

    def do_cvta(self, kind, modifiers, operands):
        value = self.value(operands[1], kind)
        if "shared" in modifiers:
            value = f"({value} {'-' if 'to' in modifiers else '+'} (uint64_t)(uintptr_t)thread->shared)"
        return self.set(operands[0], kind, value)

    def do_mov(self, kind, _, operands):
        into, source = operands
        if source.startswith("{"):
            parts = arguments_of(source.strip("{} "))
            bits = WIDTHS[kind] * 8 // len(parts)
            halves = [f"(({C_TYPES[kind]}){self.value(part, f'b{bits}')} << {i * bits})" for i, part in enumerate(parts)]
            return self.set(into, kind, " | ".join(halves))
        if into.startswith("{"):
            parts = arguments_of(into.strip("{} "))
            bits = WIDTHS[kind] * 8 // len(parts)
            sets = [self.set(part, f"b{bits}", f"whole >> {i * bits}") for i, part in enumerate(parts)]
            return f"{{ {C_TYPES[kind]} whole = {self.value(source, kind)}; {' '.join(sets)} }}"
        return self.set(into, kind, self.value(source, kind))

    # Memory

    def access(self, kind, modifiers, address, registers, check, each):
        """What is done with memory: `each`, for a register and how far behind the address its value lies."""
        space = next((one for one in modifiers if one in SPACES), None)
        several = any(one in ("v2", "v4") for one in modifiers)
        registers = arguments_of(registers.strip("{} ")) if several else [registers]
        width = WIDTHS[kind]
        done = " ".join(each(register, i * width) for i, register in enumerate(registers))
        # Parameters and other variables are the translation's own: their addresses are right.
        guard = f"if ({check}(thread, place, {width * len(registers)}))" if space in (None, "global") else ""
        return f"{{ char *place = {self.address(address, space)}; {guard} {{ {done} }} }}"

    def do_ld(self, kind, modifiers, operands):
        def load(register, at):
            copied = f"{C_TYPES[kind]} one; memcpy(&one, place + {at}, {WIDTHS[kind]});"
            return f"{{ {copied} {self.set(register, kind, 'one')} }}"

        return self.access(kind, modifiers, operands[1], operands[0], "check_read", load)

    def do_st(self, kind, modifiers, operands):
        def store(register, at):
            return f"{{ {C_TYPES[kind]} one = {self.value(register, kind)}; memcpy(place + {at}, &one, {WIDTHS[kind]}); }}"

        return self.access(kind, modifiers, operands[0], operands[1], "check_write", store)

    def do_atom(self, kind, modifiers, operands):
        """One thread runs at a time, so that every instruction is atomic."""
        if "add" not in modifiers:
            raise Unknown(".".join(["atom", *modifiers]))
        into, address, value = operands
        added = "to_bf16(from_bf16(old) + from_bf16(by))" if kind == "bf16" else "old + by"

        def add(register, at):
            old = f"{C_TYPES[kind]} old, by = {self.value(value, kind)}; memcpy(&old, place + {at}, {WIDTHS[kind]});"
            new = f"{C_TYPES[kind]} sum = {added}; memcpy(place + {at}, &sum, {WIDTHS[kind]});"
            return f"{{ {old} {new} {self.set(register, kind, 'old')} }}"

        return self.access(kind, modifiers, address, into, "check_read", add)

    # Control

    def do_bra(self, _, __, operands):
        return f"goto {identifier(operands[0])};"

    def do_ret(self, *_):
        return "return;"

    do_exit = do_ret

    def do_trap(self, *_):
        return 'thread->fault(thread, "a trap", 0, 0); return;'

    def do_bar(self, *_):
        self.waits = True
        return "thread->barrier(thread);"

    def do_shfl(self, _, modifiers, operands):
        self.waits = True
        mode = next(number for number, one in enumerate(SHUFFLES) if one in modifiers)
        value, by, clamp = self.value(operands[1], "b32"), self.value(operands[2], "u32"), self.value(operands[3], "u32")
        into, *inside = operands[0].split("|")
        sets = self.set(into, "b32", "got") + "".join(self.set(one, "pred", "in") for one in inside)
        return f"{{ uint32_t in, got = thread->shuffle(thread, {mode}, {value}, {by}, {clamp}, &in); {sets} }}"

    def do_call(self, _, __, operands):
        name = next(operand for operand in operands if not operand.startswith("("))
        if name == "__assertfail":
            return 'thread->fault(thread, "an assertion", 0, 0); return;'
        position = operands.index(name)
        # Each is one list in parentheses, or not there.
        results, given = (
            [one.strip() for one in "".join(lists).strip("()").split(",") if one.strip()]
            for lists in (operands[:position], operands[position + 1 :])
        )
        function = self.need(name)
        copies = [
            f"memcpy(given + {parameter.start}, {self.places[place]}, {parameter.size});"
            for parameter, place in zip(function.parameters, given)
        ]
        result = self.places[results[0]] if results else "0"
        size = aligned(function.size, 16) + 16
        return (
            f"{{ char given[{size}] __attribute__((aligned(16))); {' '.join(copies)} "
            f"{identifier(name)}(given, {result}, thread); }}"
        )
