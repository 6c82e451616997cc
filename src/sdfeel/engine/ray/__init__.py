"""The same simulation over a Ray cluster. Needs `pip install sdfeel[ray]`."""

from sdfeel.engine.ray.engine import RayEngine
from sdfeel.engine.ray.recipe import Recipe

__all__ = ["RayEngine", "Recipe"]
