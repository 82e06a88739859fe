"""Trying everything once, before anything is optimised."""

from dataclasses import dataclass

import jax
import numpy as np
from jax import Array as JaxArray

from dcrl.learners.q_learning import QLearning
from dcrl.replay import Replay
from dcrl.rollout import Experience, Simulator, rollout

PATIENCE = 20  # searches in a row that may come home with nothing new


@dataclass(frozen=True)
class Explored:
    """A replay in which nothing within reach is untried, and the first van's-eye view of it."""

    replay: Replay
    experience: Experience  # of the policy that chooses uniformly
    steps: int
    untried: int  # available pairs never tried: no van could get there


def explore(
    key: JaxArray, world: Simulator, *, vans: int = 64, tries: int = 1, tail: float = 1e-6
) -> Explored:
    """Drive until every action within reach was tried at least `tries` times.

    First the vans choose uniformly. Then they head for the pairs that were tried too rarely: the
    reward is one there and nothing elsewhere, and the replay says how to get there.
    """
    key, key_uniform = jax.random.split(key)
    uniform = world.available / world.available.sum(1, keepdims=True)
    experience = rollout(key_uniform, world, uniform, vans=vans, tail=tail)
    replay, steps = Replay.empty(world).add(experience), experience.steps
    seeker = QLearning()
    fruitless = 0
    while fruitless < PATIENCE:
        wanted = world.available & (replay.visits.sum(2) < tries) & ~world.terminal[:, None]
        q = np.where(world.available, seeker.seek(replay, wanted), -np.inf)
        if world.initial @ q.max(1) <= 0:
            break
        best = q == q.max(1, keepdims=True)
        key, key_seek = jax.random.split(key)
        seeking = rollout(
            key_seek, world, best / best.sum(1, keepdims=True), vans=vans, tail=max(tail, 1e-2)
        )
        fruitless = 0 if seeking.visits.sum(2)[wanted].any() else fruitless + 1
        replay, steps = replay.add(seeking), steps + seeking.steps
    untried = world.available & ~replay.tried & ~world.terminal[:, None]
    return Explored(replay, experience, steps, int(untried.sum()))
