"""All pictures, and how to save one."""

from sdfeel.report.curves import curves
from sdfeel.report.drawing import save, svg
from sdfeel.report.holdings import holdings
from sdfeel.report.topology import topology

__all__ = ["curves", "holdings", "save", "svg", "topology"]
