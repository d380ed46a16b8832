"""Our own documents: `profiled_model`, `model_record` and `problem` (see `planner.codec`)."""

from __future__ import annotations

import re
from typing import Any

from planner import codec
from planner.errors import InputError
from planner.problem import Problem
from profiles.importers.base import IMPORTERS, ImportOptions
from profiles.model import ModelRecord, ProfiledModel

KINDS: dict[str, type] = {codec.kind_of(noun): noun for noun in (ProfiledModel, ModelRecord, Problem)}
_OURS = re.compile(rb'"document"\s*:\s*"(%s)"|"graph"\s*:' % "|".join(KINDS).encode())


@IMPORTERS.register
class OwnDocument:
    """Reads what `pipeplan profile` writes, recorded models, and whole problems."""

    name = "profile"

    def sniff(self, head: bytes) -> bool:
        """A JSON object with one of our headers, or with a `graph`."""
        return head.lstrip().startswith(b"{") and _OURS.search(head) is not None

    def read(self, text: str, options: ImportOptions) -> ProfiledModel | ModelRecord:
        """The document; a problem keeps its cluster and its workload."""
        values = codec.parse(text)
        found: Any = codec.decode(KINDS[_kind(values)], values)
        if isinstance(found, Problem):
            return ProfiledModel(
                graph=found.graph, profiles=found.profiles, cluster=found.cluster, workload=found.workload
            )
        assert isinstance(found, ProfiledModel | ModelRecord)
        return found


def _kind(values: Any) -> str:
    """The document's header; without one, a record is what has `work`."""
    if not isinstance(values, dict):
        raise InputError("a profile document is a JSON object")
    kind = values.get("document", "model_record" if "work" in values else "profiled_model")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"this is a {str(kind)[:64]!r} document: give one of {', '.join(KINDS)}", pointer="/document")
    return kind
