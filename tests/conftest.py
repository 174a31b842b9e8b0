"""What all tests have in common: one thread, a seed for each test, and the seed that rotates the slow ones."""

from __future__ import annotations

import os

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


def pytest_report_header() -> str:
    """The seed that the slow laws are rotated by."""
    return f"MULTITUDES_SEED={os.environ.get('MULTITUDES_SEED', '0')}"


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same randomness."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
