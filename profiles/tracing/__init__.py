"""From a torch model to a layer graph: `trace` and the sources of runnable models. Needs the `torch` extra."""
