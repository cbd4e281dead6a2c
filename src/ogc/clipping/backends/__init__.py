"""Three implementations of a training step: hand-written gradient in eager mode, torch.compile, and CUDA kernels.

They use only what :class:`ogc.clipping.ogc.OGC` lists as its interface for them.
"""
