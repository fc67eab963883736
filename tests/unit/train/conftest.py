import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """The models are so small that a second thread costs more than it brings."""
    torch.set_num_threads(1)
