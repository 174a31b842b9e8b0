"""Small networks on which members that share weights go wrong, where they are carried in one pass without care."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """Adds to each layer what it was given: the first layer with members to what has none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = x + torch.tanh(self.first(x))
        return self.head(h + torch.tanh(self.second(h)))


class EarlyToken(nn.Module):
    """Gives each row its class token before any layer has run."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.first, self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        token = self.token.expand(x.shape[0], -1, -1)
        h = torch.tanh(self.first(x))
        h = torch.cat([token, h], 1)
        return self.head(h[:, 0] + torch.tanh(self.mix(h)).mean(1))


class StoredRows(nn.Module):
    """Remembers how many rows came in, and shapes by that number what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(32, 5)
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows = x.shape[0]
        h = torch.tanh(self.second(torch.tanh(self.first(x.reshape(-1, 8)))))
        return self.head(h.reshape(self.rows, -1))


class PaddingMask(nn.Module):
    """Attention with a mask that has one entry for each row and step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(8, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        h = self.embed(x)
        h = h + self.attention(h, h, h, key_padding_mask=padding, need_weights=False)[0]
        kept = (~padding).to(h.dtype)[..., None]
        return self.head((h * kept).sum(1) / kept.sum(1))


class Untouched(nn.Module):
    """Returns its input as it came and something that no layer has seen, beside its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        scores = self.head(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return scores, {"input": x, "size": x.norm(dim=1)}


class BatchMean(nn.Module):
    """Subtracts the mean over the rows, without a norm that could be asked for it; `more` runs before."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.first, self.more = nn.Linear(8, 8), nn.Sequential(*more)
        self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(torch.tanh(self.more(self.first(x))))
        return self.head(torch.tanh(h - h.mean(0)))


class Numbered(nn.Module):
    """Adds to each row a number by its place in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(torch.tanh(self.first(x)))
        return self.head(torch.tanh(h + 0.1 * torch.arange(h.shape[0], dtype=h.dtype)[:, None]))


class StepsFirst(nn.Module):
    """Works on steps first and rows second; with `last` it returns the last step alone, rows first."""

    def __init__(self, last: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.second(torch.tanh(self.first(x)))).cumsum(0)
        return self.head(h[-1] if self.last else h)


class StepMajor(nn.Module):
    """Lays the steps of all rows behind each other, so that a row's entries are far apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows, steps, width = x.shape
        h = x.transpose(0, 1).reshape(steps * rows, width)
        h = torch.tanh(self.second(torch.tanh(self.first(h))))
        return self.head(h.reshape(steps, rows, -1)[-1])


class TwoViews(nn.Module):
    """Runs its input and its mirror image as one batch of twice the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.second(torch.tanh(self.first(torch.cat([x, x.flip(1)])))))
        there, back = h.unflatten(0, (2, x.shape[0]))
        return self.head(there + 2 * back)


class Windows(nn.Module):
    """Takes each row apart into windows, and puts it together again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inside, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        h = torch.tanh(self.first(x)).unflatten(1, (2, 2)).flatten(0, 1)
        h = torch.tanh(self.inside(h - h.mean(1, keepdim=True)))
        return self.head(h.unflatten(0, (rows, 2)).square().sum((1, 2)))


class ChannelsAsRows(nn.Module):
    """Convolves each channel of a picture as if it were a picture of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows, channels = x.shape[:2]
        h = torch.tanh(self.second(torch.tanh(self.first(x.reshape(rows * channels, 1, *x.shape[2:])))))
        return self.head(h.mean((2, 3)).reshape(rows, -1))


class RecurrentBetween(nn.Module):
    """A recurrent layer between two linear ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm, self.head = nn.Linear(8, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.first(x))[0][:, -1])


class Selected(nn.Module):
    """Runs a layer on those rows only that a look at their values chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        chosen = h.sum(1) > 0
        h = h.clone()
        h[chosen] = torch.tanh(self.middle(h[chosen]))
        return self.head(h)


class Unpadded(nn.Module):
    """Leaves out padding before its layers, so that rows have as many entries as they have steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        kept = ~padding
        steps = torch.tanh(self.second(torch.tanh(self.first(x[kept]))))
        h = torch.zeros_like(x).masked_scatter(kept[..., None], steps)
        return self.head(h.sum(1))


class Filled(nn.Module):
    """Writes layers' outputs into a tensor of zeros made from the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(17, 5)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.zeros(x.shape[0], 17, dtype=x.dtype)
        h = torch.tanh(self.first(x))
        z[:, :8] = h
        z[:, 8:16] = torch.tanh(self.second(h))
        z[:, 16] = h.sum(1)
        return self.head(z)


class InputAgain(nn.Module):
    """Puts its input beside what every layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(16, 8), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([x, torch.tanh(self.first(x))], 1)
        return self.head(torch.cat([x, h[:, 8:], torch.tanh(self.second(h))], 1))


class Branches(nn.Module):
    """Parts behind its first layer: one way has layers, one has none, and one ends in a gate for both."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.stem(x))
        gate = torch.sigmoid(self.gate(h))
        return self.head(torch.cat([gate * torch.tanh(self.left(h)) + (1 - gate) * h, h.square()], 1))


class CalledTwice(nn.Module):
    """Calls one layer on what has no members yet, and again on what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.again(torch.tanh(self.first(x))))
        return self.head(torch.tanh(self.again(h)) + self.again(x))


class UsedTwice(nn.Module):
    """Registers one block under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.right, self.head = self.left, nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(torch.cat([self.left(h), self.right(h.flip(1))], 1))


class Loose(nn.Module):
    """Multiplies by a matrix that is no layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.matrix, self.head = nn.Linear(8, 8), nn.Parameter(torch.randn(8, 8) / 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(F.linear(self.first(x), self.matrix)))


class Einsum(nn.Module):
    """Attention written by its indices."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.out, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(2, (2, 4)) for layer in (self.query, self.key, self.value))
        weights = torch.einsum("bthc,bshc->bhts", q, k).softmax(3)
        h = torch.einsum("bhts,bshc->bthc", weights, v).flatten(2)
        return self.head(torch.einsum("btc,bt->bc", self.out(h), x[..., 0]))


class Squeezed(nn.Module):
    """Drops all axes of size one, and so that of the rows where there is one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))).squeeze())


class Nested(nn.Module):
    """Containers in containers: in its modules, in its inputs, and in its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleDict(
            {
                "a": nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 8)))]),
                "b": nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]),
            }
        )
        self.head = nn.Linear(8, 5)

    def forward(self, given: dict[str, Any]) -> list[Any]:
        (x, (scale,)), h = given["parts"], given["h"]
        for layer in self.ways["a"]:
            x = torch.tanh(layer(x))
        for layer in self.ways["b"]:
            h = torch.tanh(layer(h))
        return [{"scores": self.head(x + scale * h)}, (h, [x])]


class RowByRow(nn.Module):
    """Runs its layers on one row after another, each without an axis for rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.stack([torch.tanh(self.second(torch.tanh(self.first(row)))) for row in x]))
