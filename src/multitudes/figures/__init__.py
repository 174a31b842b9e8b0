"""Figures of numbers: tensors, arrays or lists go in, a matplotlib Figure comes out, ready for `savefig`.

Each takes theme="light" or "dark"; where a figure has one panel, `ax=` draws it into axes of yours. Nothing is shown, and
neither pyplot nor matplotlib's settings are touched; a notebook shows what a cell returns after `%matplotlib inline`.

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
