"""Settings of all tests. JAX reads where its cache is when it is first imported."""

from dcrl.cli import use_compilation_cache

use_compilation_cache()

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
settings.register_profile("dcrl", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("dcrl")


@pytest.fixture
def key():
    return jax.random.key(0)
