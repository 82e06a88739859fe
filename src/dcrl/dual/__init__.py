"""How multipliers move: one file per rule."""

from dcrl.dual.ascent import Ascent as Ascent
from dcrl.dual.column import Column as Column
from dcrl.dual.column import Dual as Dual
from dcrl.dual.column import mix as mix
from dcrl.dual.cross_entropy import CrossEntropy as CrossEntropy
from dcrl.dual.fixed import Fixed as Fixed
from dcrl.dual.kkt import residuals as residuals
from dcrl.dual.master import Master as Master
from dcrl.dual.pi import Pi as Pi
