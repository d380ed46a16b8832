"""Published runs of Megatron-LM on eight B200; `ORIGIN.md` says whose."""
