"""Updates per second of DDPG, against the one of SBX (Stable-Baselines3 in JAX).

Both learn with one environment and one update for every step of it, the same networks, batch,
replay, warm-up, discount, learning rate, share of the slow networks and exploring noise. The world
is trivial, so that what is timed is the learner: four numbers that decay and are pushed by one
action, a reward of minus their squares, episodes of 200 steps. Ours is a native world, SBX's the
same in NumPy. SBX runs in a process and an environment of its own, in turns with ours.

Ours is `train` without multipliers. It also judges its policy in every round, on as few lanes as
there can be: one episode per 1000 updates, whose steps count nothing. The first chunk of rounds
compiles and warms up; the chunks after it are timed, with all the host does between them. SBX's
first block does the same for it; what it compiles counts apart as well. Updates are those of all
seeds. Ten seeds are trained in one program of ten, and in two programs of five on two threads.

Ours does a little more per update: it keeps running means of observations and of the size of
rewards, and clips gradients. SBX writes no logs here. The parameters of both are counted, and a
difference is an error.

    python -m venv peer && peer/bin/pip install sbx-rl
    python benchmarks/ddpg.py --peer peer/bin/python       # or name it in DCRL_PEER_PYTHON
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from typing import Any, NamedTuple

# Both interpreters read this file, and neither has the library of the other, so each side imports
# what it needs where it needs it.

HORIZON = 200
HIDDEN, HIDDEN_CRITIC = (32, 32), (32, 32, 32)
BATCH, CAPACITY, WARM_UP = 128, 100_000, 1000
DISCOUNT, LEARNING_RATE, SMOOTHING, NOISE = 0.99, 1e-3, 0.005, 0.3
DECAY, PUSH = 0.9, (0.1, -0.1, 0.1, -0.1)  # of the world
UPDATES = 1000  # per round
PEER = "DCRL_PEER_PYTHON"


def world() -> Any:
    """The world as a native one."""
    from dataclasses import dataclass

    import jax
    import jax.numpy as jnp

    from dcrl.envs.native import Outcome
    from dcrl.policies import Box

    @dataclass(frozen=True)
    class Decay:
        name = "decay"
        observation_names = ("a", "b", "c", "d")
        actions = Box((-1.0,), (1.0,))
        discount = DISCOUNT
        horizon = HORIZON
        terminates = False
        constraints = ()

        def reset(self, key):
            return jax.random.uniform(key, (4,), minval=-1.0)

        def observe(self, state):
            return state

        def step(self, key, state, action):
            del key
            state = DECAY * state + action[0] * jnp.array(PUSH)
            return Outcome(state, -jnp.sum(state**2), jnp.zeros((), bool))

    return Decay()


def gymnasium_world() -> Any:
    """The same for Gymnasium."""
    import gymnasium
    import numpy as np

    class Decay(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-2.0, 2.0, (4,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        push = np.array(PUSH, np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.state = self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)
            self.time = 0
            return self.state, {}

        def step(self, action):
            self.state = DECAY * self.state + action[0] * self.push
            self.time += 1
            reward = -float(self.state @ self.state)
            return self.state, reward, False, self.time >= HORIZON, {}

    return Decay()


def as_peer(updates: int, blocks: int) -> dict[str, Any]:
    """Time SBX, in its own environment."""
    import numpy as np
    from sbx import DDPG
    from stable_baselines3.common.noise import NormalActionNoise

    def size(tree: Any) -> int:
        return sum(map(size, tree.values())) if isinstance(tree, dict) else tree.size

    begun = time.perf_counter()
    model = DDPG(
        "MlpPolicy",
        gymnasium_world(),
        policy_kwargs={"net_arch": {"pi": list(HIDDEN), "qf": list(HIDDEN_CRITIC)}},
        learning_rate=LEARNING_RATE,
        qf_learning_rate=LEARNING_RATE,
        train_freq=1,
        gradient_steps=1,
        batch_size=BATCH,
        buffer_size=CAPACITY,
        learning_starts=WARM_UP,
        tau=SMOOTHING,
        gamma=DISCOUNT,
        action_noise=NormalActionNoise(np.zeros(1), np.full(1, NOISE)),
        seed=0,
    )
    model.learn(WARM_UP + updates, log_interval=None)
    seconds_first = time.perf_counter() - begun
    seconds, done = [], model._n_updates
    for _ in range(blocks):
        begun = time.perf_counter()
        model.learn(updates, log_interval=None, reset_num_timesteps=False)
        seconds.append(time.perf_counter() - begun)
    return {
        "updates": (model._n_updates - done) // blocks,
        "seconds": seconds,
        "seconds_first_block": seconds_first,
        "parameters_actor": size(model.policy.actor_state.params),
        "parameters_critic": size(model.policy.qf_state.params),
        "versions": {name: version(name) for name in ("sbx-rl", "jax", "numpy", "gymnasium")},
    }


def run_peer(python: str, updates: int, blocks: int) -> dict[str, Any]:
    command = [python, __file__, "--as-peer", "--updates", str(updates), "--blocks", str(blocks)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the peer, {' '.join(command)}, failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


class Variant(NamedTuple):
    """How many seeds, and how they share programs."""

    seeds: int
    together: int


VARIANTS = {
    "one": Variant(1, 1),
    "ten_in_two_programs": Variant(10, 5),
    "ten_in_one_program": Variant(10, 10),
}


def run_ours(variant: Variant, blocks: int) -> dict[str, Any]:
    """Time `train`, chunk by chunk."""
    from dcrl.compile_time import CompileClock
    from dcrl.dual import Fixed
    from dcrl.learners.ddpg import DDPG
    from dcrl.nets import count_parameters
    from dcrl.training import CHUNK, train

    learner = DDPG(
        hidden=HIDDEN,
        hidden_critic=HIDDEN_CRITIC,
        learning_rate=LEARNING_RATE,
        batch=BATCH,
        capacity=CAPACITY,
        warm_up=WARM_UP,
        explorers=1,
        updates=UPDATES,
        smoothing=SMOOTHING,
        noise=NOISE,
    )
    clock, ends, compiled, nets = CompileClock(), [], [], {}

    def on_chunk(everyone: Any, _: float) -> None:
        ends.append(time.perf_counter())
        compiled.append(clock.compiling())
        nets.update(everyone[0].carry.learner.nets._asdict())

    train(
        world(),
        learner=learner,
        dual=Fixed(),
        seeds=range(variant.seeds),
        rounds=CHUNK * (1 + blocks),
        lanes=1,
        steps=HORIZON,
        together=variant.together,
        threads=2,
        on_chunk=on_chunk,
    )
    if compiled[-1] > compiled[0]:
        raise RuntimeError("the chunks that are timed compiled too: they say nothing.")
    together = min(variant.together, variant.seeds)
    return {
        "updates": variant.seeds * CHUNK * UPDATES,
        "seconds": [after - before for before, after in itertools.pairwise(ends)],
        "compile_seconds": compiled[0],
        "parameters_actor": count_parameters(nets["actor"]) // together,
        "parameters_critic": count_parameters(nets["critic"]) // together,
    }


def main(peer: str, repeats: int, blocks: int, updates: int) -> None:
    from measure import keep, median

    told: dict[str, list[dict[str, Any]]] = {name: [] for name in (*VARIANTS, "peer")}
    for _ in range(repeats):
        for name, variant in VARIANTS.items():
            told[name].append(run_ours(variant, blocks))
            told["peer"].append(run_peer(peer, updates, blocks))
    sizes = {
        (each["parameters_actor"], each["parameters_critic"])
        for turns in told.values()
        for each in turns
    }
    if len(sizes) > 1:
        raise RuntimeError(f"the networks are not of the same sizes, (actor, critic): {sizes}.")
    rate = {
        name: median([turn["updates"] / second for turn in turns for second in turn["seconds"]])
        for name, turns in told.items()
    }
    actor, critic = sizes.pop()
    print(f"{actor} parameters in the actors, {critic} in the critics")
    rows = []
    for name, turns in told.items():
        row = {
            "side": name,
            "updates_per_second": rate[name],
            "times_peer": rate[name] / rate["peer"],
            "parameters_actor": actor,
            "parameters_critic": critic,
            "turns": turns,
        }
        if name in VARIANTS:
            row["compile_seconds"] = median([turn["compile_seconds"] for turn in turns])
            apart = f"compiled in {row['compile_seconds']:.1f} s"
        else:
            first = median([turn["seconds_first_block"] for turn in turns])
            row["compile_seconds"] = first - updates / rate[name]
            apart = f"warmed up and compiled in {row['compile_seconds']:.1f} s"
        rows.append(row)
        print(
            f"{name:>20}: {rate[name]:8.0f} updates/s (x {row['times_peer']:.1f} of SBX); {apart}"
        )
    keep("ddpg_speed", rows)
    table(rows)


TITLES = {
    "peer": "SBX, one seed",
    "one": "dcrl, one seed",
    "ten_in_one_program": "dcrl, ten seeds in one program",
    "ten_in_two_programs": "dcrl, ten seeds in two programs",
}


def table(rows: list[dict[str, Any]]) -> None:
    """Keep what the documents show."""
    from measure import keep_table

    sides = {row["side"]: row for row in rows}
    keep_table(
        "ddpg_speed",
        ["", "updates/s, of all seeds", "times SBX", "seconds to compile"],
        [
            [
                title,
                f"{sides[name]['updates_per_second']:,.0f}",
                f"{sides[name]['times_peer']:.1f}",
                f"{sides[name]['compile_seconds']:.1f}",
            ]
            for name, title in TITLES.items()
        ],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="DDPG here and in SBX")
    parser.add_argument("--peer", default=os.environ.get(PEER), help="interpreter that has SBX")
    parser.add_argument("--as-peer", action="store_true", help="be the peer: time SBX, print JSON")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=3, help="timed, per repeat and side")
    parser.add_argument("--updates", type=int, default=4000, help="per block of the peer")
    given = parser.parse_args()
    if given.as_peer:
        print(json.dumps(as_peer(given.updates, given.blocks)))
    elif not given.peer or shutil.which(given.peer) is None:
        sys.exit(
            "SBX lives in an environment of its own: give its interpreter with --peer, or in the "
            f"environment variable {PEER}; got {given.peer!r}."
        )
    else:
        main(given.peer, given.repeats, given.blocks, given.updates)
