"""Datasets, image corruptions and augmentation. Nothing is ever downloaded.

Included in the package    fashion, digits, uci("yacht"), uci("energy")
Generated from a seed      sinusoids, noisy_function (1-D and 2-D toy tasks), scenes (segmentation)
Read from downloads        cifar10, cifar100, mnist, fashion_mnist, kmnist, notmnist, svhn, uci
  with distribution shift  cifar_c, imagenet_c (corruptions), objectnet, frames (videos)
  image folders            folder: ImageNet and its variants, Textures, your own images
Converted                  of: a torch or Hugging Face dataset

Every loader returns `Data` (`uci` two, train and test; `frames` a `Frames`; `cifar_c` and `imagenet_c` a mapping of them).
`Data` holds inputs, targets, class names and the normalisation. It is a torch Dataset for any DataLoader, goes into `mt.fit`
and `mt.predict` as it is, and `data.batch(rows, device)` returns a whole normalised batch.

Loaders of downloads look in `root=`, or in the folder that the environment variable MULTITUDES_DATA names. If files are
missing, the error says which, where it looked, and from which page to get them.

Beside the datasets there are `corrupt` and `corruptions` (the 19 corruptions of CIFAR-10-C), `Augment` and `RandAugment`
(augmentation of training batches), `RandomCrop` (crops of image files for training), and `grouped` (merges predictions for
ImageNet's classes into groups of classes).

>>> from multitudes import data
>>> train = data.fashion("train")
>>> train
Data(fashion train: 6,000 × [1, 28, 28] uint8, 10 classes)
>>> x, y = train.batch(range(32))
>>> x.shape, y.shape
(torch.Size([32, 1, 28, 28]), torch.Size([32]))
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
from multitudes.data.random_crop import RandomCrop as RandomCrop
from multitudes.data.scenes import scenes as scenes
from multitudes.data.shifts import cifar_c as cifar_c
from multitudes.data.shifts import imagenet_c as imagenet_c
from multitudes.data.svhn import svhn as svhn
from multitudes.data.uci import uci as uci
