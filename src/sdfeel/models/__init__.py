"""The models by name, and any nn.Module as one flat row."""
