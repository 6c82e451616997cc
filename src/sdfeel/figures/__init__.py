"""The paper's figures: what each was run with, what it is said to show, and whether that holds."""
