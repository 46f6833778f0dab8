"""Every refusal of k3bench: what is wrong, where, and how to fix it."""

from __future__ import annotations


class K3Error(Exception):
    """One clear error. `what` in a sentence, `where` a file, line, field or job, `fix` the next thing to do."""

    exit_code = 2

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

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.fix))


def _rebuild(kind: type[K3Error], what: str, where: str, fix: str) -> K3Error:
    """Errors cross process borders in submitit's pickles; keyword arguments do not survive that by themselves."""
    return kind(what, where=where, fix=fix)


class RecipeError(K3Error):
    """The recipe cannot be run as written."""


class RecordError(K3Error):
    """A file is not the record it should be."""


class StoreError(K3Error):
    """A result could not be read from, or written to, disk."""


class BuildError(K3Error):
    """An arm could not be made runnable."""


class MeasureError(K3Error):
    """An allocation could not be measured to its end."""


class RankError(MeasureError):
    """A rank of a distributed model ended, kept silent, or is not where it should be."""


class ServingError(K3Error):
    """A server could not be started, reached or asked."""


class TraceError(K3Error):
    """A trace cannot answer the question; the message names the cure."""


class StatisticsError(K3Error):
    """A number that no statistic may be computed from."""


class TrackingError(K3Error):
    """MLflow could not be written; the records and the report are intact."""
