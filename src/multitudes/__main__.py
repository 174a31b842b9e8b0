"""Runs the `multitudes` command as `python -m multitudes`."""

from multitudes.shell.commands import main

if __name__ == "__main__":
    main()
