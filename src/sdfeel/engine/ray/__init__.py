"""The same simulation over a Ray cluster. Needs `pip install sdfeel[ray]`."""

from sdfeel.engine.ray.actor import Recipe
from sdfeel.engine.ray.engine import RayEngine

__all__ = ["RayEngine", "Recipe"]
