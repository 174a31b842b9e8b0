"""Members: outputs by name and as attributes."""

from __future__ import annotations

import pytest
import torch

from multitudes.prediction.members import Members


def test_a_mapping_of_what_was_given() -> None:
    """Members return the stored tensor by name; probs and labels are computed from logits."""
    logits = torch.randn(2, 3, 4)
    members = Members({"logits": logits}, "classes")
    assert list(members) == ["logits"]
    assert len(members) == 1
    assert members["logits"] is members.logits is logits
    assert members.shape == (2, 3, 4)
    torch.testing.assert_close(members.probs, logits.softmax(2))
    assert torch.equal(members.labels, logits.argmax(2))
    assert repr(members) == "Members(logits=[2, 3, 4])"
    with pytest.raises(AttributeError, match=r"mean.* logits"):
        members.mean  # noqa: B018


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_yes_and_no(task: str) -> None:
    """A label is 1 for logits above 0 and probabilities above one half; regressions have no labels."""
    logits = torch.tensor([[-1.0, 2.0]])
    assert Members({"logits": logits}, task).labels.tolist() == [[0, 1]]
    assert Members({"probs": logits.sigmoid()}, task).labels.tolist() == [[0, 1]]
    torch.testing.assert_close(Members({"logits": logits}, task).probs, logits.sigmoid())
    with pytest.raises(AttributeError, match="no labels"):
        Members({"mean": logits}, "regression").labels  # noqa: B018
