"""The directory of an artifact as values: what is stored where, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

U64_MAX = 2**64 - 1
MAX_RANK = 16
RAW_BYTES = "raw_bytes_v1"
ACTIVATION_POLICIES = ("A16Only", "AllowA8", "AllowA4")


@dataclass(frozen=True, slots=True)
class TensorObject:
    """A tensor in the logical payload. ``format`` and ``layout`` may be names that this reader does not know."""

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    offset: int
    size_bytes: int
    divisors: int = 1  # nvfp4: the matrix is a stack of so many equally high ones, each with its own divisor

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class ResourceObject:
    """Raw bytes in the logical payload."""

    id: str
    encoding: str
    offset: int
    size_bytes: int


StoredObject = TensorObject | ResourceObject


@dataclass(frozen=True, slots=True)
class BindingPart:
    """Elements ``begin`` to ``end`` of a tensor, counted in C order of its logical shape."""

    object_id: str
    begin: int
    end: int

    @property
    def elements(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Binding:
    """The values of one parameter: its parts one after the other."""

    parts: tuple[BindingPart, ...]
    is_whole: bool = False  # one whole object, whose shape is the parameter's

    @property
    def elements(self) -> int:
        return sum(part.elements for part in self.parts)


@dataclass(frozen=True, slots=True)
class Use:
    """A parameter multiplied with one input."""

    parameter: str
    input: str
    activation_policy: str | None = None  # the lowest activation precision allowed, of ACTIVATION_POLICIES
    auxiliaries: Mapping[str, Binding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Which head drafts: the ``full`` output head, or an ``indexed`` one of ``rows`` rows."""

    domain: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a model: text, vision, mtp, dflash, dflash2."""

    config: Mapping[str, Any]
    target: str | None = None  # id of the component that it belongs to
    resources: Mapping[str, str] = field(default_factory=dict)  # role -> object id
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the artifact and its share of the logical payload."""

    name: str | None  # a sibling of the entry file; None is the entry file itself
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Directory:
    """Everything that the directory of a version 3 artifact says."""

    components: Mapping[str, Component]
    objects: Mapping[str, StoredObject]  # by id, in payload order
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    files: tuple[FileRecord, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
