"""The methods, one file each."""

from multitudes.methods.batchensemble import BatchEnsemble as BatchEnsemble
from multitudes.methods.deep import Deep as Deep
from multitudes.methods.masksembles import Masksembles as Masksembles
from multitudes.methods.multihead import MultiHead as MultiHead
from multitudes.methods.packed import Packed as Packed
from multitudes.methods.single import Single as Single
from multitudes.methods.treenet import TreeNet as TreeNet
