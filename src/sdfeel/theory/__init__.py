"""The paper's convergence bounds as functions: constants, conditions, and what follows from them.

Corrected constants are the default; `printed=True` gives those that the paper prints.
"""
