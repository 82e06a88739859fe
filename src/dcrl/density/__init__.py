"""How often states are visited: estimates from experience, exact values, intervals."""

from dcrl.density.counts import Counts as Counts
from dcrl.density.exact import Exact as Exact
