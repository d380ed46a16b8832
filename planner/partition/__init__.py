"""The bottleneck partitioning problem: instances in hypergraph form, contractions, exact passes."""
