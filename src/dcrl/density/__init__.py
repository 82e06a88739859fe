"""How often states are visited: bases, estimates from experience, exact values, intervals."""

from dcrl.density.bases import Basis as Basis
from dcrl.density.counts import Counts as Counts
from dcrl.density.exact import Exact as Exact
from dcrl.density.hat import Hat as Hat
from dcrl.density.kde import KernelDensity as KernelDensity
from dcrl.density.kernel_nodes import Kernels as Kernels
from dcrl.density.kernel_nodes import PaperMixed as PaperMixed
from dcrl.density.regions import Ball as Ball
from dcrl.density.regions import Rectangle as Rectangle
from dcrl.density.regions import Regions as Regions
from dcrl.density.scattered import Nearest as Nearest
from dcrl.density.scattered import Simplices as Simplices
