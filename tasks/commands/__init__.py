"""The commands that need the core, one file per command, run as ``python -m tasks.commands.NAME`` by `plm`."""
