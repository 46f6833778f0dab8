"""Every refusal of k3model: what is wrong, where, and how to fix it. Torch-free."""

from __future__ import annotations


class K3ModelError(Exception):
    """One clear error. `what` in a sentence, `where` a field or tensor, `fix` the next thing to do."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(self.__str__())

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


class ConfigError(K3ModelError):
    """The shapes or options do not describe a model that can be built."""


class PolicyError(K3ModelError):
    """An overlap policy that does not exist."""


class DeviceError(K3ModelError):
    """The device asked for is not there."""


class CapacityError(K3ModelError):
    """More rows or a longer context than the caches were built for."""


class CollectiveError(K3ModelError):
    """A collective where none may be, or ranks that do not belong together."""


class CheckpointError(K3ModelError):
    """A checkpoint that does not fit this model; the message names the tensor."""
