"""`python -m multitudes`: the shell."""

from multitudes.shell.commands import main

if __name__ == "__main__":
    main()
