"""An experiment file becomes a durable run."""
