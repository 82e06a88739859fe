import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from dcrl import Density, Multipliers, load
from dcrl.checkpoint import from_arrays, to_arrays
from dcrl.density import Hat
from dcrl.dual import Ascent, Fixed, Master, Pi
from dcrl.evaluation import evaluate_mixture
from dcrl.gauge import bind_features
from dcrl.learners.ddpg import DDPG
from dcrl.learners.ppo import PPO
from dcrl.native_run import NativeConfig, execute_native, unfinished
from dcrl.presets import native_settings
from dcrl.training import Programs, Setup, advance, begin, train
from ladder import Aim, Broken, Sun

QUICK = PPO(hidden=(8,), hidden_critic=(8,), epochs=1, minibatches=2)


def numbers(found):
    return (found.rows, found.policies, found.weights, found.net)


def identical(one, other):
    same = jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), numbers(one), numbers(other))
    return all(jax.tree.leaves(same))


@pytest.mark.parametrize("dual", [Pi(averaging=False), Master(), Pi()], ids=["pi", "master", "mix"])
def test_a_resumed_training_ends_as_if_it_had_never_stopped(dual):
    kept = {}

    def keep(everyone, seconds):
        if len(everyone[0].rows) == 10:
            kept["half"] = save_arrays(to_arrays(everyone))

    settings = {"learner": QUICK, "dual": dual, "seeds": (0, 1, 2), "together": 2}
    settings |= {"rounds": 15, "lanes": 8, "average": 2}
    whole = train(Sun(), on_chunk=keep, **settings)
    half = load_arrays(kept["half"])
    resumed = train(Sun(), resume=lambda programs: from_arrays(programs, half), **settings)
    assert [found.seed for found in resumed] == [0, 1, 2]
    assert all(len(found.rows) == 15 for found in resumed)
    assert all(identical(*pair) for pair in zip(whole, resumed, strict=True))


def test_the_same_seed_gives_the_same_numbers_whoever_else_trains():
    settings = {"learner": QUICK, "rounds": 12, "lanes": 8}
    alone = train(Sun(), seeds=(5,), **settings)[0]
    among = train(Sun(), seeds=(4, 5, 6), **settings)[1]
    other = train(Sun(), seeds=(4,), **settings)[0]
    assert identical(alone, among)
    assert not identical(alone, other)


def test_seeds_side_by_side_do_what_each_does_alone():
    settings = {"learner": QUICK, "rounds": 3, "lanes": 8, "seeds": (0, 1)}
    apart = train(Sun(), together=1, **settings)
    together = train(Sun(), together=2, **settings)
    for one, other in zip(apart, together, strict=True):
        for mine, theirs in zip(one.rows, other.rows, strict=True):
            np.testing.assert_allclose(mine.value, theirs.value, rtol=1e-3)
            np.testing.assert_allclose(mine.net, theirs.net, rtol=1e-3)


def test_multipliers_move_by_the_papers_formula():
    rule = Ascent(step_size=0.25)
    found = train(Sun(4.0), learner=QUICK, dual=rule, rounds=12, lanes=64, margin=0.0)[0]
    sigma = 0.0
    for row in found.rows:
        sigma = max(0.0, sigma + 0.25 * (float(row.value[0]) - 4.0))
        assert float(row.net[0]) == pytest.approx(-sigma, abs=1e-5)
    assert sigma > 0


def test_margins_are_standard_errors():
    rule = Ascent(step_size=1.0)
    found = train(Sun(4.0), learner=QUICK, dual=rule, rounds=1, lanes=64, margin=2.0)[0]
    row = found.rows[0]
    # Visits of a lane are whole numbers, so their variance follows from the ones of the lanes.
    want = max(0.0, float(row.value[0]) + 2.0 * float(row.error[0]) - 4.0)
    assert float(row.net[0]) == pytest.approx(-want, abs=1e-5)
    assert 0 < float(row.error[0]) < 10 / 2 / 64**0.5 + 1e-6  # at most half the range


def test_the_master_mixes_policies_that_break_the_bound_alone():
    found = train(Sun(4.0), learner=PPO(cool=20.0), dual=Master(), rounds=40, lanes=256)[0]
    assert len(found.policies) > 1
    fresh = evaluate_mixture(
        Sun(4.0), found.setup.learner, found.policies, found.weights, key=3, vans=8192
    )
    assert fresh.value.estimate[0] == pytest.approx(4.0, rel=0.03)
    assert fresh.objective.estimate[0] == pytest.approx(4.0, rel=0.03)


def test_a_multiplier_is_a_function_of_the_feature():
    @dataclasses.dataclass(frozen=True)
    class Graded(Sun):
        @property
        def constraints(self):
            return (Density(basis=Hat((-1.0,), (1.0,), (2,)), upper=[np.inf, 4.0]),)

    rule = Ascent(step_size=0.1)
    found = train(Graded(), learner=QUICK, dual=rule, rounds=3, lanes=64)[0]
    at = jnp.array([[-1.0], [0.0], [0.5], [1.0], [2.0]])
    price = float(found.net[1])
    assert price < 0
    want = [0.0, price / 2, 0.75 * price, price, 0.0]  # linear between, zero outside
    np.testing.assert_allclose(found.multiplier(at), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_numbers_that_are_not_finite_are_located(where):
    with pytest.raises(ValueError, match=r"not finite: seed 3, round 1, lane 0, step 3"):
        train(Broken(where), learner=QUICK, dual=Fixed(), seeds=(3,), rounds=2, lanes=4)


def test_a_basis_that_does_not_reach_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Short(Sun):
        @property
        def constraints(self):
            return (Density(basis=Hat((0.0,), (1.0,), (3,)), upper=4.0),)

    with pytest.raises(ValueError, match="lie outside its basis, where nothing would be bounded"):
        train(Short(), learner=QUICK, rounds=1, lanes=4)


@pytest.mark.parametrize("dual", [Fixed(), Master()], ids=["compiled", "host"])
def test_a_seed_that_diverges_ends_with_its_last_good_policy(dual):
    wild = dataclasses.replace(QUICK, learning_rate=1e30, epochs=4)
    found = train(Aim(), learner=wild, dual=dual, rounds=30, lanes=8)[0]
    assert 0 < found.ended <= 30
    assert len(found.rows) == found.ended
    assert f"diverged in round {found.ended}" in found.message
    for policy in found.policies:
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(policy))


def test_rewards_that_the_multipliers_cancel_teach_nothing_but_break_nothing():
    # Being in the sun pays one and is charged one: every return is exactly zero.
    free = Fixed(Multipliers(np.zeros(1), np.ones(1)))
    found = train(Sun(), learner=QUICK, dual=free, rounds=11, lanes=8)[0]
    assert not found.ended
    moved = np.array([row.info.divergence for row in found.rows])
    np.testing.assert_allclose(moved, 0.0, atol=1e-6)


def test_chunks_of_a_training_are_compiled_once():
    setup = Setup(
        Sun(), bind_features(Sun().constraints, Sun()), QUICK, Ascent(), 8, 10, 30, 1.0, 1
    )
    programs = Programs(setup)
    progress = begin(programs, (0,))
    for _ in range(3):
        advance(programs, progress, 10)
    assert programs.rounds._cache_size() == 1


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="`steps` must divide"):
        train(Sun(), learner=QUICK, lanes=8, steps=3)
    with pytest.raises(ValueError, match="must be at least 1"):
        train(Sun(), learner=QUICK, rounds=0)
    with pytest.raises(ValueError, match="capacity"):
        DDPG(capacity=10)


def config(**changes):
    chosen = dataclasses.replace(
        native_settings("rover"), rounds=12, lanes=8, average=2, episodes=16, **changes
    )
    return NativeConfig("rover", {}, chosen, (0, 1))


def test_a_training_on_disk_reads_back(tmp_path):
    folder = tmp_path / "run"
    outcome, judged, rows = execute_native(config(), folder)
    run = load(folder)
    assert run.config == config()
    assert run.records == rows
    for answer, found, fresh in zip(run.answers, outcome, judged, strict=True):
        np.testing.assert_array_equal(answer.weights, found.weights)
        same = jax.tree.map(np.array_equal, answer.policies, found.policies)
        assert all(jax.tree.leaves(same))
        np.testing.assert_array_equal(answer.history["judged.high"], fresh.value.high)
        np.testing.assert_array_equal(
            answer.history["net"], np.stack([row.net for row in found.rows])
        )
    observation = np.array([-0.8, 0.0, 0.0, 0.0], np.float32)
    act = run.draw(jax.random.key(0), 1)
    key = jax.random.key(1)
    policies = run.answers[1].policies
    mine = [run.learner.act(p, key, jnp.asarray(observation)[None])[0] for p in policies]
    acted = np.asarray(act(key, observation))
    assert any(np.allclose(acted, np.clip(action, -1, 1)) for action in mine)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["round"]) for line in metrics] == [
        (seed, number) for seed in (0, 1) for number in range(1, 13)
    ]


def test_a_training_that_was_killed_is_resumed_to_the_same_outcome(tmp_path, monkeypatch):
    monkeypatch.setattr("dcrl.native_run.CHECKPOINT_SECONDS", 0.0)
    whole = execute_native(config(), tmp_path / "whole")[2]

    def kill(everyone, seconds):
        if len(everyone[0].rows) == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute_native(config(), tmp_path / "killed", kill)
    assert not (tmp_path / "killed" / "record.json").exists()
    again = unfinished(tmp_path / "killed")
    assert again == config()
    begun = []
    resumed = execute_native(
        again,
        tmp_path / "killed",
        lambda everyone, s: begun.append(len(everyone[0].rows)),
        resumed=True,
    )[2]
    assert begun == [12]  # the first ten rounds were not done again
    ignored = {"seconds", "compile_seconds"}
    for one, other in zip(whole, resumed, strict=True):
        assert {k: v for k, v in one.items() if k not in ignored} == {
            k: v for k, v in other.items() if k not in ignored
        }
    with pytest.raises(ValueError, match="is finished; there is nothing to resume"):
        unfinished(tmp_path / "killed")


def test_a_full_disk_costs_checkpoints_but_not_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr("dcrl.native_run.CHECKPOINT_SECONDS", 0.0)
    from dcrl import native_run

    write, full = native_run.write, [True]

    def fail(path, content):
        if full[0] and path.name == "checkpoint.safetensors" and len(told) == 1:
            raise ValueError(f"{path} cannot be written: No space left on device.")
        write(path, content)

    told, stages = [], []
    monkeypatch.setattr(native_run, "write", fail)
    rows = execute_native(
        config(), tmp_path / "run", lambda everyone, s: told.append(s), stages.append
    )[2]
    assert any("No space left on device" in stage for stage in stages)
    assert load(tmp_path / "run").records == rows


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    kept = {}
    settings = {"learner": QUICK, "rounds": 10, "lanes": 8}
    train(Sun(), on_chunk=lambda p, s: kept.update(half=to_arrays(p)), dual=Fixed(), **settings)
    with pytest.raises(ValueError, match="made by other settings or another version"):
        train(
            Sun(),
            dual=Pi(averaging=False),
            resume=lambda programs: from_arrays(programs, kept["half"]),
            **settings,
        )
