"""The 19 common corruptions of images of CIFAR-10-C and ImageNet-C, each at five severities."""

from multitudes.data.corruptions.corrupt import corrupt as corrupt
from multitudes.data.corruptions.corrupt import corruptions as corruptions
