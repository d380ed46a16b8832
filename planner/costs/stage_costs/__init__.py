"""What one stage costs in a paper's own search model, one file per model (`docs/search-models.md`)."""
