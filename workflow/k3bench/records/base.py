"""What every record is: frozen, strict, versioned, and the same bytes on every machine.

In: plain data. Out: a validated `Record`, its canonical JSON, its digest. Out of scope: where files lie (`store.py`).
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
)

from k3bench.errors import RecordError

#: Names never become paths: no slash, no leading dot, nothing a shell could read.
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=120)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PositiveMs = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Model(BaseModel):
    """A part of a record: frozen, strict, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class Grown(Model):
    """A part that got fields after its first records were kept. Those named in `ADDED` are left out of the file while
    they hold their default, so that a record from before keeps its bytes and its digest.
    """

    ADDED: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_what_was_added(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        data: dict[str, Any] = handler(self)
        for name in self.ADDED:
            if getattr(self, name) == fields[name].get_default(call_default_factory=True):
                data.pop(name, None)
        return data


class Record(Model):
    """A file of its own. Subclasses fix `schema_` (the key `schema` in the file) to a versioned id."""

    SCHEMA: ClassVar[str]
    schema_: str = Field(alias="schema")

    def digest(self) -> str:
        """sha256 of the canonical bytes."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Canonical JSON with a final newline."""
        return canonical_json(self.model_dump(mode="json", by_alias=True)) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> Self:
        """Parse and validate. Raises `RecordError` naming the first field that is wrong."""
        try:
            return cls.model_validate_json(data, strict=True)
        except ValidationError as error:
            raise RecordError(
                f"not a {cls.SCHEMA} record: {first_problem(error)}",
                where=where,
                fix="records are written by k3bench only; restore the file or run the stage that writes it again",
            ) from None


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8, shortest round-trip floats; refuses NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    """sha256 of a plain value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def first_problem(error: ValidationError) -> str:
    """The first complaint of pydantic as `field.path: message`."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    return f"{path}: {first['msg']}" if path else str(first["msg"])
