"""trtllm-eval, stood in for: checks its arguments and tells a score that K3_STANDIN_SCORE may set."""

from __future__ import annotations

import os
import sys

from tests.standin.arguments import asked, refuse

TASKS = ("gsm8k",)
TASK_OPTIONS = ("--dataset_path", "--num_samples")


def main(words: list[str]) -> int:
    """`--model M <flags of trtllm-serve> TASK <options of the task>`."""
    if words[:1] != ["--model"]:
        refuse(("--model is missing", "it comes first"))
    task = next((i for i, word in enumerate(words) if word in TASKS), None)
    if task is None:
        refuse(("no task", ", ".join(TASKS)))
    asked(words[2:task])
    if any(word.startswith("--") and word not in TASK_OPTIONS for word in words[task:]):  # type: ignore[index]
        refuse((f"unknown option among {words[task:]}", ", ".join(TASK_OPTIONS)))  # type: ignore[index]
    print(f"lm-eval gsm8k average accuracy: {os.environ.get('K3_STANDIN_SCORE', '96.55')}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
