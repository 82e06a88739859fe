"""Checkpoints of a training: plain arrays, from which it goes on as if it had never stopped."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from numpy import ndarray as Array

from dcrl.training import Carry, Programs, Progress, Row, duals_on_host, start_duals


def to_arrays(everyone: Sequence[Progress]) -> dict[str, Array]:
    """Return everything that the rest of a training depends on."""
    arrays: dict[str, Array] = {}
    for index, progress in enumerate(everyone):
        rows: Any = jax.tree.map(lambda *column: np.stack(column), *progress.rows)
        parts = {
            "seeds": [np.array(progress.seeds, np.int64)],
            "ended": [np.array(progress.ended, np.int64)],
            "first": jax.tree.leaves((progress.first, progress.reward_scale)),
            "carry": [_numbers(leaf) for leaf in jax.tree.leaves(progress.carry)],
            "rows": jax.tree.leaves(rows),
            "kept": [np.stack(leaves) for leaves in zip(*progress.kept, strict=True)],
        }
        for name, leaves in parts.items():
            for place, leaf in enumerate(leaves):
                arrays[f"{index:03}.{name}.{place:03}"] = np.ascontiguousarray(leaf)
    return arrays


def from_arrays(programs: Programs, arrays: Mapping[str, Array]) -> list[Progress]:
    """Read it back; the settings of the training say what the numbers mean."""
    return [
        _progress(programs, _part(arrays, prefix))
        for prefix in sorted({name.split(".")[0] for name in arrays})
    ]


def _part(arrays: Mapping[str, Array], prefix: str) -> dict[str, list[Array]]:
    part: dict[str, list[Array]] = {}
    for name in sorted(name for name in arrays if name.startswith(prefix + ".")):
        part.setdefault(name.split(".")[1], []).append(arrays[name])
    return part


def _progress(programs: Programs, part: Mapping[str, list[Array]]) -> Progress:
    setup = programs.setup
    seeds = tuple(part["seeds"][0].tolist())
    started = jax.eval_shape(programs.start, jax.ShapeDtypeStruct((len(seeds),), jnp.uint32))
    first, scale = _fill((started.column, started.reward_scale), part["first"])
    duals = start_duals(setup, first, scale) if setup.dual.compiles else None
    carry = _fill(started.carry._replace(dual=duals), part["carry"])
    stacked = _fill(_row_shapes(programs, carry), part["rows"])
    rows = [
        jax.tree.map(lambda column, k=k: column[k], stacked) for k in range(len(part["rows"][0]))
    ]
    progress = Progress(
        seeds,
        jax.tree.map(jnp.asarray, carry),
        [],
        first,
        scale,
        rows,
        [list(leaves) for leaves in zip(*part["kept"], strict=True)],
        part["ended"][0].tolist(),
    )
    if not setup.dual.compiles:
        progress.duals = duals_on_host(setup, progress)
    return progress


def _row_shapes(programs: Programs, carry: Carry) -> Row:
    """Return what a row is made of, whatever the dual rule."""
    _, seen = jax.eval_shape(programs.look, carry.key, carry.lanes, carry.learner)
    net = jax.ShapeDtypeStruct(seen.column.value.shape, jnp.float32)
    earning = jax.ShapeDtypeStruct(net.shape[:1], jnp.float32)
    return jax.eval_shape(programs.improve, carry.key, carry.learner, seen, net, earning)[1]


def _numbers(leaf: JaxArray) -> Array:
    """Return plain numbers, those of a random key too."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _fill(template: Any, leaves: Sequence[Array]) -> Any:
    """Put arrays in the places of a template."""
    places, structure = jax.tree.flatten(template)
    if len(places) != len(leaves):
        raise ValueError(
            f"the checkpoint holds {len(leaves)} arrays where this training has {len(places)}; it "
            "was made by other settings or another version."
        )
    filled = [
        jax.random.wrap_key_data(jnp.asarray(leaf))
        if jnp.issubdtype(place.dtype, jax.dtypes.prng_key)
        else leaf
        for place, leaf in zip(places, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, filled)
