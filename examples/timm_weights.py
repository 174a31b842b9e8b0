"""A network of timm with trained weights from a local file becomes an ensemble, and is fine-tuned on images of your own.

    pip install timm

Here the file holds weights of this run; yours is one that you have downloaded.
"""

import tempfile
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import multitudes as mt
from multitudes import data
from multitudes.integrations import vision


def main() -> dict[str, float]:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "resnet10t.safetensors"
        save_file(timm.create_model("resnet10t", num_classes=10).state_dict(), file)
        model = vision.load_weights(timm.create_model("resnet10t", num_classes=10), file)

    prepare = vision.preparation({**model.pretrained_cfg, "input_size": (3, 64, 64)})  # its mean and std; smaller images
    print(prepare)
    fashion = data.fashion("train")
    images, labels = fashion.batch(range(96))  # floats, [B, 1, 28, 28], normalised
    low, high = images.min(), images.max()
    x = prepare(((images - low) / (high - low)).expand(-1, 3, -1, -1))

    ens = mt.ensemble(model, mt.MultiHead(members=4), x[:2], seed=0)  # the trunk is shared, and keeps its weights
    print(ens)
    optimizer = torch.optim.AdamW(ens.train().param_groups(lr=0.003))
    for rows in torch.arange(64).split(16):
        optimizer.zero_grad()
        ens.loss(x[rows], labels[rows], F.cross_entropy).backward()
        optimizer.step()
    scores = mt.score(mt.predict(ens, x[64:]), labels[64:])
    print(scores)
    return dict(scores)


if __name__ == "__main__":
    main()
