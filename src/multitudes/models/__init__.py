"""The networks of the papers. Every class takes `width=`, a factor on all its hidden widths.

Classes     ResNet, WideResNet, PyramidNet, ViT, MLP, LeNet, SmallCNN, all of them a Network
By name     resnet18, wideresnet28_10, ...: the networks of the papers' tables

>>> from multitudes import models
>>> net = models.resnet18(classes=100, width=0.25)
>>> sum(p.numel() for p in net.parameters())
713076
"""

from multitudes.models.mlp import MLP as MLP
from multitudes.models.network import Network as Network
from multitudes.models.papers import emp_mlp as emp_mlp
from multitudes.models.papers import emp_regression as emp_regression
from multitudes.models.papers import masksembles_mlp as masksembles_mlp
from multitudes.models.papers import mimo_mlp as mimo_mlp
from multitudes.models.papers import packed_regression as packed_regression
from multitudes.models.papers import pyramidnet110_270 as pyramidnet110_270
from multitudes.models.papers import resnet18 as resnet18
from multitudes.models.papers import resnet50 as resnet50
from multitudes.models.papers import resnet50x2 as resnet50x2
from multitudes.models.papers import resnet50x4 as resnet50x4
from multitudes.models.papers import resnext50 as resnext50
from multitudes.models.papers import wideresnet16_4 as wideresnet16_4
from multitudes.models.papers import wideresnet28_10 as wideresnet28_10
from multitudes.models.pyramidnet import PyramidNet as PyramidNet
from multitudes.models.resnet import ResNet as ResNet
from multitudes.models.small import LeNet as LeNet
from multitudes.models.small import SmallCNN as SmallCNN
from multitudes.models.vit import ViT as ViT
from multitudes.models.wide_resnet import WideResNet as WideResNet
