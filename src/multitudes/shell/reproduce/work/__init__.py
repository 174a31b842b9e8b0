"""What the items of the papers run: functions that make jobs, draw figures, or return findings."""
