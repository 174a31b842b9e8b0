"""Functions that draw a figure from tensors, arrays or lists. Each returns a matplotlib Figure, ready for `savefig`.

Each takes theme="light" or "dark". Figures with one panel take `ax=` to draw into your axes. The functions do not use pyplot,
change no matplotlib settings and open no window. In a notebook, run `%matplotlib inline` and return the figure from a cell.

>>> from multitudes import figures
>>> figure = figures.disagreement([[0.0, 0.1], [0.1, 0.0]])
>>> figure.savefig("disagreement.png")  # doctest: +SKIP
"""

from multitudes.figures.bands import bands as bands
from multitudes.figures.corruption import corruption as corruption
from multitudes.figures.cost_quality import cost_quality as cost_quality
from multitudes.figures.disagreement import disagreement as disagreement
from multitudes.figures.entropy_map import entropy_map as entropy_map
from multitudes.figures.ood import ood as ood
from multitudes.figures.reliability import reliability as reliability
from multitudes.figures.risk_coverage import risk_coverage as risk_coverage
from multitudes.figures.segmentation import segmentation as segmentation
