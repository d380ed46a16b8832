"""Predicted against measured runs: `python -m benchmarks.truth`."""
