"""What the command line shows and writes: tables, progress, files. rich is imported where it is used."""
