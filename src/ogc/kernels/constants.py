"""Constants of the method that the kernels share with their plain versions in ``clipping``."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from ..given_label import P_MIN

# the mixture
LLOYD_STEPS = 10
EM_STEPS = 10
TOLERANCE = 1e-3
"""EM stops once the mean log likelihood changes by less."""
VARIANCE_ADDED = 1e-3
"""Added to each variance."""
TINY = 10 * sys.float_info.epsilon
"""Added to the size of each component, so that an empty one does not divide by zero."""
SAME_MEAN = 1e-6
"""Two means closer than this are one value: rounding errors decide which of them is the smaller one."""

# the threshold
GRID = 1000
"""Number of equally spaced H at which the ratio of gradients is computed."""
TABLE = 65536
"""Intervals of the table of slopes over the logit of p. Its inverse is accurate to about 1e-8, near 0 and 1 too."""
LOGIT_MAX = math.log((1 - P_MIN) / P_MIN)
LOGIT_STEP = 2 * LOGIT_MAX / TABLE

# the state
MOST_CLASSES = 64
"""Columns of the thresholds by class. With more classes, all share one threshold."""
OCTAVES = 32
"""Columns of the history. Column i holds the last update in steps 2^i to 2^(i + 1) - 1."""
UNRELIABLE_SEPARATION = 2.0
"""Below this separation the two normals are hard to tell apart."""


class KernelRule(NamedTuple):
    """A rule for tau, as far as a kernel knows it.

    The kernel solves r(tau) = 1 + epsilon_t, where epsilon_t is ``epsilon`` ("constant"), epsilon lr ("times lr") or
    epsilon lr / (highest lr so far) ("relative").
    """

    epsilon: float
    lr: Literal["constant", "times lr", "relative"]
    every: int  # steps between updates
    samples_needed: int
    constants: Mapping[str, float] = MappingProxyType({})  # of the default rule; empty for other rules
