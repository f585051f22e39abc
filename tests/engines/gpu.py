"""Parameters of tests that run on the CPU and, where there is one, on a GPU."""

import pytest
import torch

NO_GPU = "there is no GPU that CUDA can use"
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)
DEVICES = ("cpu", pytest.param("cuda", marks=GPU))
