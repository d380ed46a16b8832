"""Explanations: why nothing fits and what helps, what bounds the time of a plan and what would help most."""
