"""Everything that exists for speed on NVIDIA GPUs: steps as CUDA graphs, flat memory, Triton kernels."""
