"""Functions that draw a figure from tensors, arrays or lists. Each returns a matplotlib Figure, ready for `savefig`.

Each takes theme="light" or "dark". Figures with one panel take `ax=` to draw into your axes. The functions do not use pyplot,
change no matplotlib settings and open no window. In a notebook, run `%matplotlib inline` and return the figure from a cell.

>>> from multitudes import figures
>>> figure = figures.disagreement([[0.0, 0.1], [0.1, 0.0]])
>>> figure.savefig("disagreement.png")  # doctest: +SKIP
"""

from multitudes.figures.against import against as against
from multitudes.figures.bands import bands as bands
from multitudes.figures.bias_variance import bias_variance as bias_variance
from multitudes.figures.conditional_variance import conditional_variance as conditional_variance
from multitudes.figures.corruption import corruption as corruption
from multitudes.figures.cost_quality import cost_quality as cost_quality
from multitudes.figures.counts import counts as counts
from multitudes.figures.disagreement import disagreement as disagreement
from multitudes.figures.entropy_map import entropy_map as entropy_map
from multitudes.figures.function_prior import function_prior as function_prior
from multitudes.figures.kl_bound import kl_bound as kl_bound
from multitudes.figures.landscape import landscape as landscape
from multitudes.figures.mask_statistics import mask_statistics as mask_statistics
from multitudes.figures.ood import ood as ood
from multitudes.figures.reliability import reliability as reliability
from multitudes.figures.risk_coverage import risk_coverage as risk_coverage
from multitudes.figures.segmentation import segmentation as segmentation
from multitudes.figures.sweep import sweep as sweep
from multitudes.figures.trajectories import trajectories as trajectories
from multitudes.figures.weight_share import weight_share as weight_share
