import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from dcrl import evaluate_exactly
from dcrl.envs.express import express, network
from dcrl.tabular import best_response, density, occupancy_lp

SIZES = [10, 20, 29, 100]


@pytest.mark.parametrize("points", SIZES)
@pytest.mark.parametrize("seed", range(10))
def test_every_point_can_be_visited(points, seed):
    """The service points hang together even without the centre, where trips end."""
    roads = network(points, seed)
    assert (roads.roads == roads.roads.T).all()
    assert not roads.roads.diagonal().any()
    for part in (roads.roads, roads.roads[1:, 1:]):
        assert connected_components(scipy.sparse.csr_array(part), directed=False)[0] == 1
    assert roads.starts.sum() == max(2, np.ceil(0.15 * points))
    distance = roads.length[0]
    assert distance[roads.starts].min() >= distance[1:][~roads.starts[1:]].max()


@pytest.mark.parametrize("points", SIZES)
def test_bounds_bite_and_can_be_kept(points):
    """The unconstrained optimum breaks them clearly, and the LP keeps them."""
    for seed in range(10):
        for lower in (0.1, 0.5):
            world = express(points, lower, seed)
            free = evaluate_exactly(world, best_response(world.model).policy)
            assert free.worst_slack == -1  # some point is never visited
            optimum = occupancy_lp(world.model, world.bounds)
            assert world.bounds.worst_slack(world.bounds.measure(optimum.density)) >= -1e-6
            assert optimum.objective < free.objective.estimate[0]


def test_networks_are_the_same_on_every_machine():
    roads = network(20, 0)
    again = network(20, 0)
    np.testing.assert_array_equal(roads.positions, again.positions)
    np.testing.assert_allclose(roads.positions.sum(), 71.304579, atol=1e-6)
    assert roads.roads.sum() // 2 == 52
    assert (network(20, 1).positions != roads.positions).any()


def test_the_shortest_trip_is_dijkstras():
    roads = network(29, 4)
    world = express(29, 0.1, 4, discount=1.0)
    graph = scipy.sparse.csr_array(np.where(roads.roads, roads.length, 0))
    shortest = scipy.sparse.csgraph.dijkstra(graph, indices=0)
    np.testing.assert_allclose(-best_response(world.model).value, shortest, atol=1e-9)


def test_visits_are_counted_at_the_start_and_distance_is_the_cost():
    world = express(10, 0.1, 0, discount=1.0)
    policy = best_response(world.model).policy
    rho = density(world.model, policy)
    starts = network(10, 0).starts
    assert (rho[starts] >= 1 / starts.sum() - 1e-12).all()
    assert rho[0] == pytest.approx(1.0)  # everybody arrives


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"points": 2}, "at least 3 service points; got 2"),
        ({"seed": -1}, "must not be negative"),
        ({"discount": 1.5}, r"must lie in \[0, 1\]"),
    ],
)
def test_bad_networks_get_a_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        express(**wrong)
