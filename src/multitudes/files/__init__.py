"""Files: what leaves the process, and how it comes back."""
