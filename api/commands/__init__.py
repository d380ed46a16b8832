"""The commands of `pipeplan`, one file each: `command` is what typer runs. Everything heavy is imported inside."""
