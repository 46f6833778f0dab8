"""What a recipe says about TensorRT-LLM: version, model, container, flags, YAML keys, client, accuracy guard.

In: plain data. Out: validated parts of a recipe. Out of scope: whether a flag or a key exists (`serving/trtllm/`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from k3bench.records.base import Model, Name

#: One line of text; what else may not be in it is refused with words of its own.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=1000)]
Flags = dict[Name, str | int | float | bool]
Client = Literal["k3bench", "benchmark_serving"]


class Container(Model):
    """The container that the ranks run in (pyxis). An arm whose build is an image replaces `image`."""

    image: Text
    mounts: tuple[Text, ...] = ()
    mount_home: bool = True


class Accuracy(Model):
    """The guard beside the speed: trtllm-eval, once for each arm of a build pair, in a job of its own."""

    task: Literal["gsm8k"] = "gsm8k"
    least_pct: Annotated[float, Field(gt=0, le=100)]
    dataset: Text | None = None
    samples: Annotated[int, Field(ge=1)] | None = None


class Trtllm(Model):
    """One trtllm-serve over all GPUs of an allocation, started anew for every run.

    `version` names the list of known flags and keys. `programs` is the folder that trtllm-serve and
    trtllm-llmapi-launch lie in; a relative one lies in the build, none means PATH. `port: 0` takes a free one.
    """

    version: Name
    model: Text
    programs: Text | None = None
    container: Container | None = None
    flags: Flags = {}
    config: dict[Name, JsonValue] = {}
    environment: dict[Name, str] = {}
    client: Client = "k3bench"
    accuracy: Accuracy | None = None
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    mpi: Literal["pmix", "pmi2", "none"] = "pmix"
    ready_poll_s: Annotated[float, Field(gt=0, le=300)] = 15.0
    #: decode iterations recorded by nsys in the separate profiled run: first, last
    profiled_steps: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)]] = (200, 250)
