"""The event simulator, and what it says about a plan."""
