"""From a torch model to a layer graph: `trace` and the sources of runnable models. Needs the `torch` extra."""

from profiles.tracing.exported import from_exported
from profiles.tracing.factory import from_factory
from profiles.tracing.loader import SourceKind, TraceLoader
from profiles.tracing.trace import trace
from profiles.tracing.transformers_source import from_transformers_config

__all__ = ["SourceKind", "TraceLoader", "from_exported", "from_factory", "from_transformers_config", "trace"]
