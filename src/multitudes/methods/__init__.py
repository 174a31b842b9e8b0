"""The methods, one file each."""

from multitudes.methods.deep import Deep as Deep
from multitudes.methods.multihead import MultiHead as MultiHead
from multitudes.methods.packed import Packed as Packed
from multitudes.methods.single import Single as Single
from multitudes.methods.treenet import TreeNet as TreeNet
