"""The only pricing code there is: compute, transfers, collectives and memory of stages and plans."""
