"""Training in C++, compiled for the model at hand: the same steps as loop.py, many times faster."""

from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.native.lower import unsupported

__all__ = ["NativeEngine", "unsupported"]
