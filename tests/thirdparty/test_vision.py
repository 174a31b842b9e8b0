"""timm's and torchvision's networks with trained weights from a file and the data configuration that belongs to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import create_transform, resolve_data_config
from torchvision.models import ResNet18_Weights, resnet18
from torchvision.models.segmentation import FCN_ResNet50_Weights
from torchvision.transforms.functional import to_pil_image

import multitudes as mt
from multitudes.integrations import vision


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=2), mt.MultiHead(members=2)], ids=["batchensemble", "multihead"])
def test_a_trained_network_of_timm_keeps_its_weights(tmp_path: Path, method: mt.Method) -> None:
    """Shared tensors of the ensemble are those of the file."""
    torch.manual_seed(0)
    trained = timm.create_model("resnet10t", num_classes=5)
    save_file({name: tensor.contiguous() for name, tensor in trained.state_dict().items()}, tmp_path / "w.safetensors")
    model = vision.load_weights(timm.create_model("resnet10t", num_classes=5), tmp_path / "w.safetensors")
    prepare = vision.preparation(model)
    assert (prepare.mean, prepare.std) == (trained.pretrained_cfg["mean"], trained.pretrained_cfg["std"])
    images = torch.randint(256, (2, 3, 200, 240), dtype=torch.uint8)
    ens = mt.ensemble(model, method, prepare(images), seed=0)
    assert ens.eval()(prepare(images)).shape == (2, 2, 5)
    given = trained.state_dict()
    shared = [name for name, tensor in ens.state_dict().items() if name in given and tensor.shape == given[name].shape]
    assert len(shared) > 20
    assert all(torch.equal(ens.state_dict()[name], given[name]) for name in shared)


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "convnext_atto", "squash"])
def test_images_are_prepared_as_timm_does(name: str) -> None:
    """But for its rounding to 8 bits after the resize."""
    model = timm.create_model("resnet10t" if name == "squash" else name)
    model.pretrained_cfg |= {"crop_mode": "squash"} if name == "squash" else {}
    smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 12, 12), (260, 300), mode="bilinear")
    image = (smooth * 255).to(torch.uint8)
    expected = create_transform(**resolve_data_config({}, model=model), is_training=False)(to_pil_image(image[0]))
    found = vision.preparation(model)(image)[0]
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) < 0.06


def test_weights_of_torchvision_say_how_images_are_prepared() -> None:
    prepare = vision.preparation(ResNet18_Weights.IMAGENET1K_V1)
    image = torch.randint(256, (1, 3, 256, 256), dtype=torch.uint8)
    torch.testing.assert_close(prepare(image), ResNet18_Weights.IMAGENET1K_V1.transforms()(image), atol=1e-5, rtol=1e-5)
    ens = mt.ensemble(resnet18(num_classes=3), mt.MultiHead(members=2), prepare(image)[:, :, ::4, ::4], seed=0, check=False)
    assert ens(prepare(image)).shape == (2, 1, 3)


def test_other_preparations_are_refused() -> None:
    """What would be prepared otherwise than in training is no image here."""
    with pytest.raises(mt.InputError, match="crop_mode='border'"):
        vision.preparation({**timm.create_model("resnet10t").pretrained_cfg, "crop_mode": "border"})
    with pytest.raises(mt.InputError, match="SemanticSegmentation"):
        vision.preparation(FCN_ResNet50_Weights.DEFAULT)
    config = timm.get_pretrained_cfg("resnet10t")
    assert vision.preparation(config) == vision.preparation(timm.create_model("resnet10t"))
    with pytest.raises(mt.InputError, match="there are no images"):
        vision.preparation(config)(torch.rand(0, 3, 8, 8))
