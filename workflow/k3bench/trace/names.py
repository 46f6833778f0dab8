"""Display names of kernels. In: a demangled name. Out: its function name without namespaces, templates and arguments.

Out of scope: identity. Two template instances are two kernels; only the display name is shared.
"""

from __future__ import annotations


def short_name(name: str) -> str:
    """`void at::native::elementwise_kernel<4, F>(int, F)` becomes `elementwise_kernel`; anything odd stays as it is."""
    plain = _without_templates(name.replace("(anonymous namespace)::", ""))
    head = plain.split("(", 1)[0].strip()
    last = head.rsplit(" ", 1)[-1].rsplit("::", 1)[-1]
    return last or name


def _without_templates(name: str) -> str:
    """Drops everything inside angle brackets; parentheses inside them count as inside."""
    depth, kept = 0, []
    for character in name.replace("->", ""):
        depth += character == "<"
        if depth == 0:
            kept.append(character)
        depth -= character == ">" and depth > 0
    return "".join(kept)
