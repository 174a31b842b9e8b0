"""Settings of all tests: one thread, the same random numbers in every run, and a seed for each test."""

from __future__ import annotations

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Starts every test from the same seed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
