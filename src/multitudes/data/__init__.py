"""Data: sets that come with multitudes, sets made from a seed, and loaders of what publishers ship. Nothing is downloaded.

>>> from multitudes import data
>>> data.fashion("train")
Data(fashion train: 6,000 × [1, 28, 28] uint8, 10 classes)

Loaders look in `root`, or in the folder that the environment variable MULTITUDES_DATA names, and say what is missing there.
"""

from multitudes.data.adapters import of as of
from multitudes.data.augment import Augment as Augment
from multitudes.data.cifar import cifar10 as cifar10
from multitudes.data.cifar import cifar100 as cifar100
from multitudes.data.corruptions import corrupt as corrupt
from multitudes.data.corruptions import corruptions as corruptions
from multitudes.data.dataset import Data as Data
from multitudes.data.embedded import digits as digits
from multitudes.data.embedded import fashion as fashion
from multitudes.data.folders import folder as folder
from multitudes.data.folders import objectnet as objectnet
from multitudes.data.frames import Frames as Frames
from multitudes.data.frames import frames as frames
from multitudes.data.generated import noisy_function as noisy_function
from multitudes.data.generated import sinusoids as sinusoids
from multitudes.data.imagenet import grouped as grouped
from multitudes.data.mnist import fashion_mnist as fashion_mnist
from multitudes.data.mnist import kmnist as kmnist
from multitudes.data.mnist import mnist as mnist
from multitudes.data.mnist import notmnist as notmnist
from multitudes.data.rand_augment import RandAugment as RandAugment
from multitudes.data.scenes import scenes as scenes
from multitudes.data.shifts import cifar_c as cifar_c
from multitudes.data.shifts import imagenet_c as imagenet_c
from multitudes.data.svhn import svhn as svhn
from multitudes.data.uci import uci as uci
