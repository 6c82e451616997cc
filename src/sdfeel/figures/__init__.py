"""The paper's figures: what each was run with, what it is meant to show, and whether that holds."""
