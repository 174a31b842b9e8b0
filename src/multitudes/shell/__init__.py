"""The shell: every command, and what a comparison of methods is made of."""
