"""Data on CUDA: the batches of the CPU, whether the set stays there or goes along."""

from __future__ import annotations

import pytest
import torch

from multitudes import data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def test_batches_are_those_of_the_cpu() -> None:
    here = data.fashion("test")
    there = here.to("cuda")
    index = torch.randperm(len(here))[:100]
    x, y = here.batch(index)
    for found in (here.batch(index, "cuda"), there.batch(index), there.batch(index.cuda())):
        assert [part.device.type for part in found] == ["cuda", "cuda"]
        torch.testing.assert_close(found[0].cpu(), x)
        assert torch.equal(found[1].cpu(), y)
    torch.testing.assert_close(there.subset([3, 4])[1][0].cpu(), here[4][0])
