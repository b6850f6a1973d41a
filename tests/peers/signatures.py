"""Compare the functions of the book's Python sketches: of one name they have one signature, and calls pass as many arguments.

    python3 tests/peers/signatures.py

Needs no PyTorch. `sketches.py` runs the sketches.
"""

import ast
import re
import sys
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "book" / "src"
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sketches():
    """Yield every sketch of the book: its page, the line of its fence, and its code, preceded by as many empty lines."""
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            line = text[: block.start(1)].count("\n")
            yield path.stem, line, "\n" * line + block[1]


def problems(trees):
    """Yield a sentence for each function or call that differs from the first definition of its name."""
    every = [(page, node) for page, tree in trees for node in ast.walk(tree)]
    signatures = {}
    for page, node in every:
        if isinstance(node, ast.FunctionDef):
            signature = ast.unparse(node.args)
            first = signatures.setdefault(node.name, signature)
            if signature != first:
                yield f"{page}.md:{node.lineno}: {node.name}({signature}), and {node.name}({first}) in another sketch"
    for page, node in every:
        # Calls of methods have no plain name.
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in signatures:
            expected = signatures[node.func.id]
            if len(node.args) + len(node.keywords) != len(expected.split(",")):
                yield f"{page}.md:{node.lineno}: {ast.unparse(node)}, and the function is {node.func.id}({expected})"


def main():
    """Print all problems."""
    trees = [(page, ast.parse(code, f"{page}.md")) for page, _, code in sketches()]
    assert trees, "the book has no Python sketches"
    found = list(problems(trees))
    sys.exit("\n".join(found) if found else None)


if __name__ == "__main__":
    main()
