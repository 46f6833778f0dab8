"""What `decode.py` is asked: the command line, the recipe it changes, kernels compiled ahead for it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from k3bench.recipe import load_recipe
from k3bench.records.recipe import Recipe

ROOT = Path(__file__).parents[1]
SECTIONS = ("steps", "harness", "ideal", "forks", "best", "peers")


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe, with the changes that the command line makes."""
    recipe = load_recipe(args.recipe)
    engine, workload = recipe.engine, recipe.workload
    if args.preset:
        engine = engine.model_copy(update={"preset": args.preset, "options": {}})
    options = dict(engine.options)
    for pair in args.set:
        name, _, value = pair.partition("=")
        options[name] = {"true": True, "false": False}.get(value, int(value) if value.isdigit() else value)
    engine = engine.model_copy(update={"device": args.device or engine.device, "options": options})
    if args.quick:
        workload = workload.model_copy(update={"isl_tokens": 64, "osl_tokens": 4, "levels": (1, 2)})
    return recipe.model_copy(update={"engine": engine, "workload": workload})


def compile_ahead(recipe: Recipe) -> None:
    """Kernels of all batches side by side, in processes of their own: one after the other they take minutes."""
    options = recipe.engine.options
    if options.get("kernels") != "triton" or recipe.engine.device == "cpu" or not torch.cuda.is_available():
        return
    words = [sys.executable, "-m", "k3model.kernels.warm", recipe.engine.preset]
    words += ["--batches", *map(str, recipe.workload.levels)]
    words += [word for name, value in options.items() for word in ("--set", f"{name}={str(value).lower()}")]
    subprocess.run(words, check=True, cwd=ROOT, timeout=400)


def parse(description: str) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "h200-rank93.yaml")
    parser.add_argument("--preset", help="instead of the recipe's, without its options")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--sections", default=",".join(SECTIONS[:-1]), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, default=6, help="of both sessions, the order turned round each time")
    parser.add_argument("--steps", type=int, default=48, help="timed in each run of a round")
    parser.add_argument("--quick", action="store_true", help="two batches, short context, two rounds of two steps")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.steps = 2, 2
    return args
