"""The public list: every name is there, documented, and means the same however it is imported."""

import inspect
import subprocess
import sys

import pytest

import dcrl


@pytest.mark.parametrize("name", dcrl.__all__)
def test_every_public_name_is_there_and_documented(name):
    assert inspect.getdoc(getattr(dcrl, name))


def test_names_mean_the_same_after_their_modules_were_imported():
    code = (
        "import dcrl.algorithm, dcrl.evaluation, dcrl.tabular.model, dcrl, inspect\n"
        "assert inspect.isfunction(dcrl.solve) and inspect.isfunction(dcrl.evaluate)\n"
        "assert inspect.isclass(dcrl.Density) and inspect.ismodule(dcrl.density)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'sovle'"):
        dcrl.sovle  # noqa: B018


def test_importing_the_package_is_light():
    code = "import dcrl, sys; assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
