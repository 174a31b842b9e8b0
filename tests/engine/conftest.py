"""Everything about executors is compared in double precision, from one seed."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """New tensors are double, torch's randomness starts from 0; both are put back."""
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
