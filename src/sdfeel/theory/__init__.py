"""The paper's convergence bounds as functions: constants, conditions, and what follows from them.

Corrected constants are the default; what the paper prints can be had with `printed=True`.
"""
