"""The command line: `dcrl tasks`, `train`, `resume`, `evaluate`, `reproduce`.

Only what parses arguments is imported up here, so that help is instant; the work imports JAX.
"""

import dataclasses
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dcrl.presets import (
    DUALS,
    LEARNERS,
    METHODS,
    TASKS,
    NativeSettings,
    choose,
    native_settings,
    settings,
)

if TYPE_CHECKING:
    from dcrl.evaluation import Evaluation
    from dcrl.native_run import NativeConfig, NativeRun
    from dcrl.result import Result, Round
    from dcrl.training import Progress

USAGE = """\
dcrl: say where your agent may spend its time, and get a policy that keeps to it, with a proof.

  dcrl tasks                 list the worlds, the methods and the dual rules
  dcrl train TASK            train on a world, and judge the outcome
  dcrl resume FOLDER         go on with a training that was cut short
  dcrl evaluate FOLDER       drive fresh episodes of a trained policy
  dcrl reproduce NAME        make a published table and its figures again

Add --help to a command for its options."""


@dataclass(frozen=True)
class TrainExpress:
    """Train on express delivery, and compare with the exact optimum.

    Learning sees sampled transitions only; the linear program on the true network is the referee.
    """

    points: int = 20
    """Service points of the road network."""
    lower: float = 0.3
    """Least density of vans at every service point."""
    discount: float = 0.999
    """Weight of a step relative to the one before."""
    seed: int = 0
    """Seed of the network and of the learning."""
    method: str = "dcrl"
    """One of: dcrl, cers, unconstrained."""
    dual: str = "master"
    """How multipliers move: master, pi or ascent."""
    seconds: float | None = None
    """Stop after so long, compiling apart; 600 by default."""
    gap: float | None = None
    """Stop at this certified relative gap."""
    out: Path | None = None
    """Folder of the run; by default a new one under runs/."""
    json: bool = False
    """Print the record of the run as the last line, for scripts."""


@dataclass(frozen=True)
class Motor:
    """The direct-current motor."""

    reference: str = "random"
    """Speed to follow: random, or sawtooth as in the published code."""


@dataclass(frozen=True)
class Rover:
    """The Mars rover."""

    upper: float | None = None
    """Greatest expected discounted time in the dangerous area, in steps; the task's by default."""


@dataclass(frozen=True)
class TrainNative:
    """Train in a native world, and judge the answers on fresh episodes."""

    method: str = "dcrl"
    """One of: dcrl, unconstrained."""
    learner: str = "ppo"
    """One of: ppo, trpo, ddpg."""
    dual: str = "pi"
    """How multipliers move: pi, ascent or master."""
    seeds: int = 1
    """How many trainings, side by side."""
    seed: int = 0
    """The first of their seeds."""
    rounds: int | None = None
    """Turns of Algorithm 1."""
    lanes: int | None = None
    """Episodes side by side in each round."""
    margin: float | None = None
    """Standard errors of the density that the bounds are tightened by."""
    average: int | None = None
    """Policies in the answer, from the ends of the last chunks of rounds."""
    episodes: int | None = None
    """Fresh episodes that judge each answer."""
    out: Path | None = None
    """Folder of the run; by default a new one under runs/."""
    json: bool = False
    """Print the records, one per seed, as the last line, for scripts."""


@dataclass(frozen=True)
class TrainMotor:
    """Train on the motor, and judge the answers on fresh episodes."""

    world: tyro.conf.OmitArgPrefixes[Motor] = field(default_factory=Motor)
    training: tyro.conf.OmitArgPrefixes[TrainNative] = field(default_factory=TrainNative)


@dataclass(frozen=True)
class TrainRover:
    """Train on the rover, and judge the answers on fresh episodes."""

    world: tyro.conf.OmitArgPrefixes[Rover] = field(default_factory=Rover)
    training: tyro.conf.OmitArgPrefixes[TrainNative] = field(default_factory=TrainNative)


@dataclass(frozen=True)
class Resume:
    """Go on with a training in a native world that was cut short, to the same outcome."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    json: bool = False
    """Print the records, one per seed, as the last line, for scripts."""


@dataclass(frozen=True)
class Evaluate:
    """Drive fresh episodes of a trained policy, and judge every bound."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder of a run."""
    vans: int = 20_000
    """Episodes to drive."""
    seed: int = 1_000_003
    """Seed of the episodes."""
    confidence: float = 0.95
    """Probability that all intervals hold together."""
    guaranteed: bool = False
    """Intervals that hold for every number of episodes, which are wider."""
    interval: str | None = None
    """In native worlds: student, bootstrap, betting, bernstein or clopper-pearson."""
    json: bool = False
    """Print the outcome as the last line, for scripts."""


@dataclass(frozen=True)
class ReproduceExpress:
    """Make the express-delivery table and figures again.

    Finished runs are kept, so the command can be stopped and started again at any time.
    """

    quick: bool = False
    """Two networks, 10 and 20 points, five seconds a run: two minutes in all."""
    out: Path | None = None
    """Folder of the results; results/express by default, results/express-quick if quick."""
    processes: int = 2
    """Runs at the same time, one core each."""
    methods: tuple[str, ...] = ()
    """Only these rows, of: master, pi, ascent, cers, unconstrained."""
    only_report: bool = False
    """Run nothing; make table and figures from what is there."""


@dataclass(frozen=True)
class ReproduceNative:
    """Make the tables and figures of a native world again.

    Finished trainings are kept under runs/, so the command can be stopped and started again.
    """

    quick: bool = False
    """Two seeds, few rounds: to see that it works, not for its figures."""
    out: Path | None = None
    """Folder of the results; results/NAME by default, results/NAME-quick if quick."""
    only_report: bool = False
    """Train nothing; make tables and figures from what is there."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; bad input is one sentence and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _dispatch(words)
    except ValueError as error:
        print(f"dcrl: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("dcrl: stopped.", file=sys.stderr)
        raise SystemExit(130) from None


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return
    if words[0] == "--version":
        from dcrl import __version__

        print(__version__)
        return
    command = choose("command", words.pop(0), ("tasks", "train", "resume", "evaluate", "reproduce"))
    if command == "tasks":
        _tasks()
    elif command == "train":
        handlers: dict[str, tuple[type[Any], Callable[[Any], None]]] = {
            "express": (TrainExpress, _train_express),
            "motor": (TrainMotor, lambda o: _train_native("motor", o.world, o.training)),
            "rover": (TrainRover, lambda o: _train_native("rover", o.world, o.training)),
        }
        _named(words, "train", TASKS, handlers)
    elif command == "resume":
        _resume(tyro.cli(Resume, prog="dcrl resume", args=words))
    elif command == "evaluate":
        _evaluate(tyro.cli(Evaluate, prog="dcrl evaluate", args=words))
    else:
        handlers = {
            "express": (ReproduceExpress, _reproduce_express),
            **{
                name: (ReproduceNative, functools.partial(_reproduce_native, name))
                for name in ("motor", "rover")
            },
        }
        _named(words, "reproduce", TASKS, handlers)


def _named(
    words: list[str],
    command: str,
    described: dict[str, str],
    handlers: dict[str, tuple[type[Any], Callable[[Any], None]]],
) -> None:
    """Hand over to the options of the thing that is named next."""
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: dcrl {command} NAME [--help] [options]\n")
        for name in handlers:
            print(f"  {name:12} {described[name]}")
        if not words:
            raise ValueError(f"{command} needs a name: one of {', '.join(handlers)}.")
        return
    name = choose("task", words.pop(0), handlers)
    options, run = handlers[name]
    run(tyro.cli(options, prog=f"dcrl {command} {name}", args=words))


def _tasks() -> None:
    listed = (
        ("tasks", TASKS),
        ("methods", METHODS),
        ("dual rules", DUALS),
        ("learners, in native worlds", LEARNERS),
    )
    for title, entries in listed:
        print(f"{title}:")
        for name, text in entries.items():
            print(f"  {name:14} {text}")


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, unless the user has said where or that it is off."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache/dcrl/jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    if jax := sys.modules.get("jax"):  # it read these when it was imported
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        least = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)


def _train_express(options: TrainExpress) -> None:
    chosen = settings(options.method, options.dual)
    changes = {"seconds": options.seconds, "gap": options.gap}
    chosen = dataclasses.replace(
        chosen, **{name: value for name, value in changes.items() if value is not None}
    )
    use_compilation_cache()
    from rich.console import Console

    from dcrl.run import Config, execute

    parameters = {
        "points": options.points,
        "lower": options.lower,
        "seed": options.seed,
        "discount": options.discount,
    }
    config = Config("express", parameters, chosen, options.seed)
    config.world()  # bad parameters are told before a folder is made
    rule = chosen.dual if chosen.method == "dcrl" else chosen.method
    name = f"express-{options.points}-{options.lower:g}-{rule}-{options.seed}"
    folder = options.out or _fresh(Path("runs"), name)
    console = Console(stderr=True)
    with console.status("compiling ... (cached for the next time)") as status:
        _, result, record = execute(config, folder, _Progress(status.update))
    _report(result, record, folder)
    if options.json:
        print(json.dumps(record))


def _fresh(parent: Path, name: str) -> Path:
    """Return a folder that does not exist yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        folder = parent / (f"{name}-{stamp}" + (f"-{number}" if number else ""))
        if not folder.exists():
            return folder
    raise ValueError(f"no free folder was found under {parent}; name one with --out.")


class _Progress:
    """One line that says how far a run has come, a few times per second."""

    def __init__(self, show: Callable[[str], None]):
        self._show = show
        self._shown = self._begun = time.perf_counter()

    def __call__(self, row: "Round") -> None:
        now = time.perf_counter()
        if now - self._shown < 0.1 and row.round > 1:
            return
        self._shown = now
        gap = (row.optimum_upper - row.answer_objective) / max(abs(row.answer_objective), 1e-12)
        self._show(
            f"round {row.round:,}  cost {-row.answer_objective:.4g}  "
            f"worst slack {row.answer_slack:+.2%}  bound gap {gap:.2%}  "
            f"{row.round / max(row.seconds, 1e-9):,.0f} rounds/s"
        )


def _report(result: "Result", record: dict[str, Any], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    cost, referee = -record["objective"], record["referee"]
    table.add_row("outcome", result.message)
    table.add_row("expected distance", f"{cost:.6g}")
    if referee is not None:
        table.add_row(
            "exact optimum",
            f"{-referee:.6g}  (linear program on the true network; ratio {cost / -referee:.4f})",
        )
    table.add_row("certificate", _bracket(record["optimum_lower"], record["optimum_upper"]))
    table.add_row(
        "bounds",
        f"{record['verdict']}, checked exactly; worst slack {record['worst_slack']:+.3%} of its "
        "bound",
    )
    table.add_row(
        "effort",
        f"{record['rounds']:,} rounds, {record['steps']:,} transitions, {record['seconds']:.2f} s "
        f"and {record['compile_seconds']:.1f} s to compile",
    )
    table.add_row("kept in", str(folder))
    Console().print(table)


def _bracket(lower: float | None, upper: float | None) -> str:
    """Say in terms of cost what was certified of the optimum."""
    source = "from sampled transitions alone"
    if lower is None:
        least = "not bounded" if upper is None else f"at least {-upper:.6g}"
        return f"the optimum is {least}, {source}; no policy within the bounds was found"
    least = "below" if upper is None else f"between {-upper:.6g} and"
    return f"the optimum lies {least} {-lower:.6g}, {source}"


def _changed(plain: NativeSettings, options: TrainNative) -> NativeSettings:
    """Return settings with what was asked for."""
    names = ("rounds", "lanes", "margin", "average", "episodes")
    asked = {name: getattr(options, name) for name in names}
    return dataclasses.replace(plain, **{k: v for k, v in asked.items() if v is not None})


def _train_native(task: str, world: Any, options: TrainNative) -> None:
    chosen = native_settings(task, options.method, options.learner, options.dual)
    chosen = _changed(chosen, options)
    if options.seeds < 1:
        raise ValueError(f"seeds must be at least 1; got {options.seeds}.")
    use_compilation_cache()
    from dcrl.native_run import NativeConfig

    given = {name: x for name, x in dataclasses.asdict(world).items() if x is not None}
    seeds = tuple(range(options.seed, options.seed + options.seeds))
    config = NativeConfig(task, given, chosen, seeds)
    refuse(config)  # bad settings are told before a folder is made
    rule = chosen.dual if chosen.method == "dcrl" else chosen.method
    name = "-".join([task, *map(str, given.values()), chosen.learner, rule, f"{options.seed}"])
    _run_native(config, options.out or _fresh(Path("runs"), name), options.json, resumed=False)


def _resume(options: Resume) -> None:
    use_compilation_cache()
    from dcrl.native_run import unfinished

    _run_native(unfinished(options.folder), options.folder, options.json, resumed=True)


def refuse(config: "NativeConfig") -> None:
    """Build everything that can refuse bad settings."""
    from dcrl.drive import refuse_segments
    from dcrl.gauge import bind_features
    from dcrl.presets import build_native

    env, chosen = config.env(), config.settings
    build_native(chosen)
    bind_features(env.constraints, env)
    refuse_segments(env, chosen.lanes, chosen.steps or env.horizon)


def _run_native(config: "NativeConfig", folder: Path, as_json: bool, *, resumed: bool) -> None:
    from rich.console import Console

    from dcrl.native_run import execute_native

    console = Console(stderr=True)
    with console.status("compiling ... (cached for the next time)") as status:
        outcome, judged, rows = execute_native(
            config,
            folder,
            _NativeProgress(config, status.update),
            lambda stage: status.update(stage),
            resumed=resumed,
        )
    for trained in outcome:
        if trained.ended:
            print(f"dcrl: {trained.message}", file=sys.stderr)
    _report_native(config, judged, rows, folder)
    if as_json:
        print(json.dumps(rows))


class _NativeProgress:
    """One line that says how far the seeds have come."""

    def __init__(self, config: "NativeConfig", show: Callable[[str], None]):
        from dcrl.gauge import bind_features

        env, chosen = config.env(), config.settings
        self._show, self._rounds = show, chosen.rounds
        self._steps = chosen.lanes * (chosen.steps or env.horizon)
        self._bounds = bind_features(env.constraints, env).bounds

    def __call__(self, everyone: Sequence["Progress"], seconds: float) -> None:
        import numpy as np

        rows = [(p.rows[-1], k) for p in everyone for k in range(len(p.seeds))]
        slack = [self._bounds.worst_slack(np.asarray(row.value[k], float)) for row, k in rows]
        objective = [float(row.objective[k]) for row, k in rows]
        done = sum(len(p.rows) * len(p.seeds) for p in everyone)
        self._show(
            f"round {len(everyone[0].rows):,} of {self._rounds:,}  "
            f"objective {np.mean(objective):.4g}  worst slack {min(slack):+.1%}  "
            f"{done * self._steps / max(seconds, 1e-9):,.0f} steps/s"
        )


def _report_native(
    config: "NativeConfig",
    judged: Sequence["Evaluation"],
    rows: Sequence[dict[str, Any]],
    folder: Path,
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("seed", "objective", "interval", "bounds", "worst slack", "not below"):
        table.add_column(name, justify="left" if name == "bounds" else "right")
    for row, outcome in zip(rows, judged, strict=True):
        table.add_row(
            str(row["seed"]),
            f"{row['objective']:.5g}",
            f"[{row['objective_low']:.5g}, {row['objective_high']:.5g}]",
            _counted(outcome),
            f"{row['worst_slack']:+.1%}",
            f"{row['worst_slack_low']:+.1%}",
        )
    console = Console(width=max(Console().width, 100))
    console.print(table)
    first = rows[0]
    if first["referee"] is not None:
        console.print(
            f"referee      {first['referee']:.5g}  (docs/{config.task}.md says what it is)"
        )
    tail = judged[0].tail
    if tail > 0:
        console.print(f"tail         {tail:.3g} of discounted time lies beyond the horizon")
    console.print(
        f"effort       {first['steps']:,} steps per seed, {first['seconds']:.1f} s for all seeds "
        f"and {first['compile_seconds']:.1f} s to compile"
    )
    console.print(f"kept in      {folder}")


def _counted(outcome: "Evaluation") -> str:
    """Say how many bounds are kept, broken and undecided."""
    each = outcome.verdicts
    return ", ".join(f"{each.count(verdict)} {verdict}" for verdict in sorted(set(each)))


def _evaluate(options: Evaluate) -> None:
    use_compilation_cache()
    from dcrl.evaluation import evaluate
    from dcrl.run import TOLERANCE, Run, load

    run = load(options.folder)
    if not isinstance(run, Run):
        _evaluate_native(options, run)
        return
    if options.interval is not None:
        raise ValueError("--interval is for native worlds; on tables there is --guaranteed.")
    outcome = evaluate(
        run.config.world(),
        run.policy,
        key=options.seed,
        vans=options.vans,
        confidence=options.confidence,
        guaranteed=options.guaranteed,
        tolerance=TOLERANCE,
    )
    low, mean, high = (float(limit[0]) for limit in outcome.objective)
    print(
        f"{options.vans:,} fresh episodes, intervals that hold together at {options.confidence:g}"
    )
    print(f"objective     {mean:.5g}  [{low:.5g}, {high:.5g}]")
    print(f"bounds        {_counted(outcome)}")
    print(f"worst slack   {outcome.worst_slack:+.3%}, not below {outcome.worst_slack_low:+.3%}")
    if options.json:
        row = {
            **run.record,
            "objective": mean,
            "worst_slack": outcome.worst_slack,
            "worst_slack_low": outcome.worst_slack_low,
            "verdict": outcome.verdict,
            "episodes": outcome.episodes,
        }
        print(json.dumps(row))


def _evaluate_native(options: Evaluate, run: "NativeRun") -> None:
    from dcrl.evaluation import evaluate_mixture
    from dcrl.native_run import verdict

    if options.guaranteed and options.interval is None:
        interval = "betting"
    else:
        interval = options.interval or "student"
    judged: list[Evaluation] = []
    rows: list[dict[str, Any]] = []
    for answer, old in zip(run.answers, run.records, strict=True):
        outcome = evaluate_mixture(
            run.config.env(),
            run.learner,
            answer.policies,
            answer.weights,
            key=options.seed + answer.seed,
            vans=options.vans,
            confidence=options.confidence,
            interval=interval,
        )
        judged.append(outcome)
        rows.append({**old, **verdict(outcome)})
    print(
        f"{options.vans:,} fresh episodes per seed, {interval} intervals that hold together at "
        f"{options.confidence:g}"
    )
    _report_native(run.config, judged, rows, options.folder)
    if options.json:
        print(json.dumps(rows))


def _reproduce_express(options: ReproduceExpress) -> None:
    use_compilation_cache()
    from dcrl.reproduce import express

    express.reproduce(
        quick=options.quick,
        out=options.out,
        processes=options.processes,
        methods=options.methods,
        only_report=options.only_report,
    )


def _reproduce_native(task: str, options: ReproduceNative) -> None:
    use_compilation_cache()
    module = importlib.import_module(f"dcrl.reproduce.{task}")
    module.reproduce(quick=options.quick, out=options.out, only_report=options.only_report)
