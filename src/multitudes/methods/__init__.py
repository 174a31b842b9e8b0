"""The methods, one file each."""

from multitudes.methods.batchensemble import BatchEnsemble as BatchEnsemble
from multitudes.methods.deep import Deep as Deep
from multitudes.methods.dropconnect import DropConnect as DropConnect
from multitudes.methods.ecmp import ECMP as ECMP
from multitudes.methods.emp import EMP as EMP
from multitudes.methods.laplace import Laplace as Laplace
from multitudes.methods.masksembles import Masksembles as Masksembles
from multitudes.methods.mcdropout import MCDropout as MCDropout
from multitudes.methods.mimo import MIMO as MIMO
from multitudes.methods.multihead import MultiHead as MultiHead
from multitudes.methods.packed import Packed as Packed
from multitudes.methods.single import Single as Single
from multitudes.methods.snapshot import Snapshot as Snapshot
from multitudes.methods.swag import SWAG as SWAG
from multitudes.methods.treenet import TreeNet as TreeNet
