"""A training in a native world on disk, of one seed or of several.

`config.json` says what is done, `metrics.jsonl` has a line per round and seed, and `dcrl resume`
goes on from `checkpoint.safetensors`. At the end `history.safetensors` has all that was measured,
and `policies.safetensors` and `record.json` hold the outcome. Loading executes nothing.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from numpy import ndarray as Array
from safetensors.numpy import load_file, save

from dcrl.evaluation import Evaluation, evaluate_mixture
from dcrl.presets import NativeSettings, build_native, make_env
from dcrl.referees import referee
from dcrl.run import commit, create, finite, variant, write
from dcrl.training import Progress, Trained, train

if TYPE_CHECKING:
    from dcrl.envs.native import Env

LIBRARIES = ("jax", "equinox", "optax", "numpy", "scipy", "highspy")
CHECKPOINT_SECONDS = 20.0  # between two checkpoints
FRESH = 1_000_003  # added to a seed: of the episodes that judge it


@dataclass(frozen=True)
class NativeConfig:
    """What a training did: enough to do it again."""

    task: str
    parameters: dict[str, Any]  # of the world
    settings: NativeSettings
    seeds: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the versions that ran it."""
        return {**asdict(self), "versions": {name: version(name) for name in LIBRARIES}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "NativeConfig":
        """Read it back."""
        settings = NativeSettings(**data["settings"])
        learning = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in settings.learning.items()
        }
        return cls(
            data["task"],
            data["parameters"],
            replace(settings, learning=learning),
            tuple(data["seeds"]),
        )

    def env(self) -> "Env":
        """Build the world."""
        return make_env(self.task, **self.parameters)


def execute_native(
    config: NativeConfig,
    folder: Path | None,
    on_chunk: Callable[[Sequence[Progress], float], None] | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    *,
    resumed: bool = False,
) -> tuple[list[Trained], list[Evaluation], list[dict[str, Any]]]:
    """Train, judge on fresh episodes, and keep everything in `folder` if one is given.

    A folder that cannot be written to while training goes on costs nothing but its checkpoints.
    """
    from dcrl.checkpoint import from_arrays, to_arrays

    env = config.env()
    if folder is not None and not resumed:
        create(folder)
        write(folder / "config.json", json.dumps(config.to_json(), indent=2).encode())
    last = time.perf_counter()
    missed = ""

    def keep(everyone: Sequence[Progress], seconds: float) -> None:
        nonlocal last, missed
        if on_chunk is not None:
            on_chunk(everyone, seconds)
        done = all(not p.going or len(p.rows) >= config.settings.rounds for p in everyone)
        if folder is not None and (done or time.perf_counter() - last > CHECKPOINT_SECONDS):
            try:
                write(folder / "metrics.jsonl", _metrics(env, everyone))
                write(folder / "checkpoint.safetensors", save(to_arrays(everyone)))
                missed = ""
            except ValueError as error:  # a full disk must not end what is in memory
                missed = str(error)
                on_stage(f"no checkpoint: {missed}")
            last = time.perf_counter()

    def resume(programs: Any) -> list[Progress] | None:
        path = None if folder is None else folder / "checkpoint.safetensors"
        if not resumed or path is None or not path.exists():
            return None
        return from_arrays(programs, load_file(path))

    outcome = train(
        env, seeds=config.seeds, on_chunk=keep, resume=resume, **build_native(config.settings)
    )
    on_stage(f"judging on {config.settings.episodes:,} fresh episodes per seed")
    judged = [judge(config, env, each) for each in outcome]
    rows = [record(config, env, *both) for both in zip(outcome, judged, strict=True)]
    if folder is not None:
        if missed:
            raise ValueError(f"{missed} The training is done, but it could not be kept.")
        write(folder / "history.safetensors", save(_history(outcome, judged)))
        write(folder / "policies.safetensors", save(_policies(outcome)))
        write(folder / "record.json", json.dumps(rows, indent=2).encode())
    return outcome, judged, rows


def judge(config: NativeConfig, env: "Env", trained: Trained, **changes: Any) -> Evaluation:
    """Judge the answer of a training on fresh episodes."""
    settings: dict[str, Any] = {"key": FRESH + trained.seed, "vans": config.settings.episodes}
    return evaluate_mixture(
        env, trained.setup.learner, trained.policies, trained.weights, **{**settings, **changes}
    )


def record(
    config: NativeConfig, env: "Env", trained: Trained, judged: Evaluation
) -> dict[str, Any]:
    """Return the row of one seed, with the columns of every method and task."""
    bounds = judged.bounds
    outside = [bounds.worst_slack(np.asarray(row.value, float)) < 0 for row in trained.rows]
    return {
        "task": config.task,
        "variant": variant(config.parameters),
        "method": config.settings.method,
        "learner": config.settings.learner,
        "dual": config.settings.dual,
        "seed": trained.seed,
        "steps": trained.steps,
        "rounds": len(trained.rows),
        "seconds": round(trained.seconds, 4),
        "compile_seconds": round(trained.compile_seconds, 4),
        "parameters": trained.parameters,
        "referee": referee(config.task, config.parameters),
        "optimum_lower": None,
        "optimum_upper": None,
        "violation_in_training": float(np.mean(outside)),
        "commit": commit(),
        "status": "DIVERGED" if trained.ended else "ROUNDS",
        "seeds_together": len(config.seeds),
        **verdict(judged),
    }


def verdict(judged: Evaluation) -> dict[str, Any]:
    """Return the columns of a row that fresh episodes decide."""
    return {
        "objective": float(judged.objective.estimate[0]),
        "objective_low": float(judged.objective.low[0]),
        "objective_high": float(judged.objective.high[0]),
        "worst_slack": judged.worst_slack,
        "worst_slack_low": judged.worst_slack_low,
        "verdict": judged.verdict,
        "episodes": judged.episodes,
    }


@dataclass(frozen=True)
class Answer:
    """What one seed found."""

    seed: int
    policies: tuple[Any, ...]
    weights: Float[Array, " k"]
    history: dict[str, Array]
    """Per round: objective, value, error, net, and what the learner told; and what the fresh
    episodes say of each bound, as `judged.low`, `judged.estimate` and `judged.high`."""


@dataclass(frozen=True)
class NativeRun:
    """A finished training, read back."""

    config: NativeConfig
    records: list[dict[str, Any]]
    learner: Any
    answers: tuple[Answer, ...]

    def draw(
        self, key: PRNGKeyArray, index: int = 0
    ) -> Callable[[PRNGKeyArray, Float[Array, " o"]], Any]:
        """Return the policy of one episode: a key and an observation in, an action out.

        An answer is a mixture, of which one policy drives each episode.
        """
        answer, actions = self.answers[index], self.config.env().actions
        chosen = int(jax.random.choice(key, len(answer.policies), p=jnp.asarray(answer.weights)))

        def act(key: PRNGKeyArray, observation: Float[Array, " o"]) -> Any:
            found = self.learner.act(answer.policies[chosen], key, jnp.asarray(observation)[None])
            return actions.to_world(jax.tree.map(lambda x: x[0], found))

        return act


def load_native(folder: Path) -> NativeRun:
    """Read a finished training back."""
    config = NativeConfig.from_json(json.loads((folder / "config.json").read_text()))
    rows = json.loads((folder / "record.json").read_text())
    arrays = load_file(folder / "policies.safetensors")
    history = load_file(folder / "history.safetensors")
    learner = build_native(config.settings)["learner"]
    state = jax.eval_shape(lambda key: learner.init(key, config.env()), jax.random.key(0))
    structure = jax.tree.structure(learner.actor(state))
    answers: list[Answer] = []
    for seed in config.seeds:
        weights = arrays[f"{seed}.weights"]
        policies = tuple(
            jax.tree.unflatten(
                structure,
                [
                    jnp.asarray(arrays[f"{seed}.policy.{index}.{leaf}"])
                    for leaf in range(structure.num_leaves)
                ],
            )
            for index in range(len(weights))
        )
        mine = {
            name.split(".", 1)[1]: column
            for name, column in history.items()
            if name.startswith(f"{seed}.")
        }
        answers.append(Answer(seed, policies, weights, mine))
    return NativeRun(config, rows, learner, tuple(answers))


def unfinished(folder: Path) -> NativeConfig:
    """Return what a training that was cut short should do."""
    if (folder / "record.json").exists():
        raise ValueError(f"the training in {folder} is finished; there is nothing to resume.")
    try:
        return NativeConfig.from_json(json.loads((folder / "config.json").read_text()))
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder} does not hold a native training to resume: {error}.") from None


def _metrics(env: "Env", everyone: Sequence[Progress]) -> bytes:
    """Return a line per round and seed."""
    from dcrl.gauge import bind_features

    bounds = bind_features(env.constraints, env).bounds
    text: list[str] = []
    for progress in everyone:
        for k, seed in enumerate(progress.seeds):
            for index, row in enumerate(progress.rows[: progress.ended[k] or None]):
                value = np.asarray(row.value[k], float)
                line = {
                    "seed": seed,
                    "round": index + 1,
                    "objective": float(row.objective[k]),
                    "worst_slack": bounds.worst_slack(value),
                    "largest_multiplier": float(np.abs(row.net[k]).max(initial=0.0)),
                    **{name: float(x[k]) for name, x in row.info._asdict().items()},
                }
                text.append(json.dumps(finite(line)))
    return ("\n".join(text) + "\n").encode()


def _history(outcome: Sequence[Trained], judged: Sequence[Evaluation]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for trained, evaluation in zip(outcome, judged, strict=True):
        for side, limit in evaluation.value._asdict().items():
            arrays[f"{trained.seed}.judged.{side}"] = np.asarray(limit)
        names = ("objective", "value", "error", "net")
        columns = {name: [getattr(row, name) for row in trained.rows] for name in names}
        for name in trained.rows[0].info._fields:
            columns[name] = [getattr(row.info, name) for row in trained.rows]
        for name, column in columns.items():
            arrays[f"{trained.seed}.{name}"] = np.stack([np.asarray(x) for x in column])
    return arrays


def _policies(outcome: Sequence[Trained]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for trained in outcome:
        arrays[f"{trained.seed}.weights"] = np.asarray(trained.weights)
        for index, policy in enumerate(trained.policies):
            for leaf, numbers in enumerate(jax.tree.leaves(policy)):
                arrays[f"{trained.seed}.policy.{index}.{leaf}"] = np.asarray(numbers)
    return arrays
