"""The `multitudes` command, and the jobs, trials and sweeps behind it."""
