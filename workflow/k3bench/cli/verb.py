"""How a verb is declared: name, one line of help, examples."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_verb(verbs: Verbs, name: str, help_: str, *examples: str) -> argparse.ArgumentParser:
    """A verb whose `--help` ends with examples that work."""
    return verbs.add_parser(
        name,
        help=help_,
        description=help_,
        epilog="examples:\n" + "\n".join(f"  {e}" for e in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
