"""Settings of the whole suite: hypothesis draws the same examples everywhere, and shared asserts explain themselves."""

import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("asserts", "samples")

torch.set_num_threads(1)  # pytest-xdist's workers share the cores

settings.register_profile(
    "ogc", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
settings.load_profile("ogc")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts us in the background has it ignored


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler():
    """No graphs left over from another test, before or after."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
