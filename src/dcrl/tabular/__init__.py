"""Exact answers on tables: models, dynamic programming, the occupancy LP, certificates."""

from dcrl.tabular.certify import Certificate as Certificate
from dcrl.tabular.certify import certify as certify
from dcrl.tabular.certify import upper_bound as upper_bound
from dcrl.tabular.dp import best_response as best_response
from dcrl.tabular.dp import density as density
from dcrl.tabular.dp import objective as objective
from dcrl.tabular.dp import soft_best_response as soft_best_response
from dcrl.tabular.dp import value as value
from dcrl.tabular.lp import Infeasible as Infeasible
from dcrl.tabular.lp import Optimum as Optimum
from dcrl.tabular.lp import least_violation as least_violation
from dcrl.tabular.lp import most_slack as most_slack
from dcrl.tabular.lp import occupancy_lp as occupancy_lp
from dcrl.tabular.mix import fold as fold
from dcrl.tabular.mix import fold_mixture as fold_mixture
from dcrl.tabular.mix import repair as repair
from dcrl.tabular.model import Model as Model
from dcrl.tabular.model import World as World
