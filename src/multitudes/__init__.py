"""multitudes: any network as an efficient ensemble, with uncertainty to trust."""

from multitudes.calibrator import calibrate as calibrate
from multitudes.check import check as check
from multitudes.choosing import select as select
from multitudes.choosing import threshold as threshold
from multitudes.convert import ensemble as ensemble
from multitudes.convert import plan as plan
from multitudes.cost import cost as cost
from multitudes.ensemble import Ensemble as Ensemble
from multitudes.errors import CheckError as CheckError
from multitudes.errors import ConversionError as ConversionError
from multitudes.errors import FileError as FileError
from multitudes.errors import InputError as InputError
from multitudes.errors import MultitudesError as MultitudesError
from multitudes.errors import RunError as RunError
from multitudes.files import load as load
from multitudes.files import save as save
from multitudes.inputs import Inputs as Inputs
from multitudes.losses import GaussianNLL as GaussianNLL
from multitudes.masks import masks as masks
from multitudes.method import Method as Method
from multitudes.methods import *  # noqa: F403
from multitudes.predict import predict as predict
from multitudes.prediction import Prediction as Prediction
from multitudes.recipes import Recipe as Recipe
from multitudes.recommend import recommend as recommend
from multitudes.report import report as report
from multitudes.resize import resize as resize
from multitudes.score import score as score
from multitudes.train import fit as fit

__version__ = "0.1.0"
