import jax
import pytest
from hypothesis import settings

from dcrl.cli import use_compilation_cache

use_compilation_cache()
jax.config.update("jax_numpy_rank_promotion", "raise")
settings.register_profile("dcrl", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("dcrl")


@pytest.fixture
def key():
    return jax.random.key(0)
