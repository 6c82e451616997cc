"""Everything that touches gradients, and the one way models are summed."""
