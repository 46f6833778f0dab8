"""The load client beside aiperf on one loopback server in one run: bias, rate, CPU seconds, and the ratios of both.

In: a virtual environment that has aiperf (nothing else here needs it). Out: a table on standard output.
Out of scope: correctness (the tests), other machines, other clients.

    python -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf
    python benchmarks/client.py --aiperf /tmp/aiperf --rounds 3

Both clients are whole processes, start-up and children included, in turn (ours, aiperf, aiperf, ours, ...), both from
byte code: pip compiled aiperf when it was installed, ours is started once unseen. Bias is a client's median time per
token against what the server itself stamped on the same requests; rate is by the server's clock.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3bench.measure.client import plan_load, run_load
from k3bench.serving.process import free_port, start_server
from k3bench.serving.prompts import random_prompts
from k3bench.serving.stream import Target

#: A tokenizer of its own, so that aiperf needs no network.
_TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
vocab = {f"w{i}": i for i in range(4000)} | {"tok": 4000, "<unk>": 4001, "<s>": 4002, "</s>": 4003}
tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
fast.save_pretrained(sys.argv[1])
"""


@dataclass(frozen=True)
class Load:
    """What both clients are asked to do."""

    name: str
    pace_ms: float
    concurrency: int
    requests: int
    osl_tokens: int


@dataclass(frozen=True)
class Found:
    """One client on one load. `server_ms` and `wall_s` are the server's own; `cpu_s` is the whole process."""

    client_ms: float
    server_ms: float
    tokens: int
    wall_s: float
    cpu_s: float

    @property
    def bias_pct(self) -> float:
        return 100.0 * (self.client_ms / self.server_ms - 1.0)

    @property
    def tokens_s(self) -> float:
        return self.tokens / self.wall_s


# --- the clients
def run_ours(url: str, load: Load) -> None:
    """One load, one JSON line: what our client says."""
    target = Target(f"{url}/pace/{load.pace_ms:g}", "reference")
    prompts = random_prompts(load.requests, isl_tokens=128, vocab=8192, seed="benchmark")
    plan = plan_load(target, prompts, concurrency=load.concurrency, osl_tokens=load.osl_tokens)
    found = run_load(target, plan)
    tpots = [(r.chunk_ns[-1] - r.chunk_ns[0]) / 1e6 / (load.osl_tokens - 1) for r in found.requests]
    print(json.dumps({"tpot_ms": statistics.median(tpots), "load_cpu_s": found.client_cpu_s}))


def ours(url: str, load: Load, folder: Path) -> float:
    """Our client as a process of its own; returns its median TPOT in ms."""
    words = [f"{load.pace_ms}", f"{load.concurrency}", f"{load.requests}", f"{load.osl_tokens}"]
    run = subprocess.run(
        [sys.executable, __file__, "--ours", url, *words],
        env=_compiling(folder), check=True, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return float(json.loads(run.stdout)["tpot_ms"])


def _compiling(folder: Path) -> dict[str, str]:
    """An environment in which byte code is kept, as that of an installed package is."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def aiperf(binary: Path, tokenizer: Path, url: str, load: Load, folder: Path) -> float:
    """aiperf as its users run it, prompts and counts as cheap as it offers; returns its median ITL in ms."""
    out = Path(tempfile.mkdtemp(dir=folder))
    words = [
        *(str(binary), "profile", "--model", "reference", "--url", f"{url}/pace/{load.pace_ms:g}"),
        *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(tokenizer)),
        *("--concurrency", str(load.concurrency), "--request-count", str(load.requests)),
        *("--isl", "128", "--isl-stddev", "0", "--osl", str(load.osl_tokens), "--osl-stddev", "0"),
        *("--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--no-gpu-telemetry"),
        *("--no-server-metrics", "--ui", "none", "--export-level", "summary", "--artifact-dir", str(out)),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    run = subprocess.run(words, env=environment, cwd=out, capture_output=True, text=True, timeout=900)
    files = sorted(out.rglob("profile_export_aiperf.json"))
    if run.returncode or not files:
        raise SystemExit(f"aiperf failed: {(run.stdout + run.stderr)[-2000:]}")
    return float(json.loads(files[0].read_text())["inter_token_latency"]["p50"])


def measured(url: str, load: Load, run: Any) -> Found:
    """A client process between two looks at the server's stamps and at the CPU time of our children."""
    _spans(url)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    client_ms = run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spans = _spans(url)
    per_token = [(last - first) / 1e6 / (tokens - 1) for first, last, tokens in spans]
    wall_s = (max(last for _, last, _ in spans) - min(first for first, _, _ in spans)) / 1e9
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Found(client_ms, statistics.median(per_token), sum(n for _, _, n in spans), wall_s, cpu_s)


def _spans(url: str) -> list[tuple[int, int, int]]:
    with urllib.request.urlopen(f"{url}/spans", timeout=30) as answer:
        return [tuple(span) for span in json.loads(answer.read())]


@contextmanager
def server(folder: Path) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("client_server.py")), "{port}"]
    started = start_server(command, log=folder / "server.log", ready_limit_s=60, port=free_port())
    try:
        yield started.base_url
    finally:
        started.stop()


def main() -> None:
    """All rounds, then the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--aiperf", type=Path, help="a virtual environment with aiperf; without it only ours runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--loads", default="few,many,full", help="which loads to run (default: few,many,full)")
    parser.add_argument("--ours", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        url, pace, concurrency, requests, osl = args.ours
        run_ours(url, Load("", float(pace), int(concurrency), int(requests), int(osl)))
        return
    c = args.concurrency
    loads = {
        "few": Load("10 ms a token, few", 10.0, 8, 64, 64),
        "many": Load("10 ms a token, many", 10.0, c, 2 * c, 256),
        "full": Load("as fast as it goes", 0.0, c, 4 * c, 1000),
    }
    with tempfile.TemporaryDirectory() as name, server(Path(name)) as url:
        ours(url, Load("byte code", 0.0, 1, 1, 2), Path(name))
        for load in args.loads.split(","):
            _compare(args, loads[load], url, Path(name))


def _compare(args: argparse.Namespace, load: Load, url: str, folder: Path) -> None:
    print(f"\n{load.name}: {load.requests} requests at c={load.concurrency}, {load.osl_tokens} tokens each")
    print("client  round  load1  client ms/token  server ms/token  bias %    tokens/s  CPU s")
    found: dict[str, list[Found]] = {"ours": [], "aiperf": []}
    names = ["ours", "aiperf"] if args.aiperf else ["ours"]
    for number in range(args.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            busy = os.getloadavg()[0]
            if name == "ours":
                one = measured(url, load, lambda: ours(url, load, folder))
            else:
                tokenizer = _tokenizer(args.aiperf, folder)
                one = measured(
                    url, load, lambda t=tokenizer: aiperf(args.aiperf / "bin" / "aiperf", t, url, load, folder)
                )
            found[name].append(one)
            bias = f"{one.bias_pct:<+9.3f}" if load.pace_ms else f"{'-':<9}"
            print(
                f"{name:<7} {number + 1:<6} {busy:<6.2f} {one.client_ms:<16.4f} {one.server_ms:<16.4f} "
                f"{bias} {one.tokens_s:<9.0f} {one.cpu_s:.2f}",
                flush=True,
            )
    _ratios(found, paced=bool(load.pace_ms))


def _ratios(found: dict[str, list[Found]], *, paced: bool) -> None:
    """Medians over rounds. Without a pace there is no time per token to be biased."""

    def middle(name: str, value: str) -> float:
        return statistics.median(getattr(one, value) for one in found[name])

    for name in (n for n in found if found[n]):
        bias = statistics.median(abs(one.bias_pct) for one in found[name])
        rate, cpu_s = middle(name, "tokens_s"), middle(name, "cpu_s")
        said = f"|bias| {bias:.3f} %, " if paced else ""
        print(f"median {name}: {said}{rate:.0f} tokens/s, {cpu_s:.2f} CPU s")
    if found["aiperf"]:
        cpu = middle("aiperf", "cpu_s") / middle("ours", "cpu_s")
        rate = middle("ours", "tokens_s") / middle("aiperf", "tokens_s")
        print(f"ratios: aiperf takes {cpu:.1f} x our CPU seconds; we read {rate:.2f} x its tokens/s")


def _tokenizer(aiperf_venv: Path, folder: Path) -> Path:
    path = folder / "tokenizer"
    if not path.exists():
        subprocess.run([aiperf_venv / "bin" / "python", "-c", _TOKENIZER, str(path)], check=True, timeout=300)
    return path


if __name__ == "__main__":
    main()
