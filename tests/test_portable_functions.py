"""Whatever decides, weighs or prices takes functions whose bits are the same on every CPU."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "sdfeel"
DECIDING = ("core", "schemes", "sim", "radio", "data", "experiment")
# NumPy's own have other last bits on other CPUs: see core/portable.py.
DIFFERENT = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "float_power"}
DIFFERENT |= {"sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh"}
DIFFERENT |= {"hypot", "cbrt", "dot", "vdot", "inner", "matmul", "tensordot", "einsum"}
# No bit of a model comes from these.
TOLD = {
    "core/portable.py",  # the home of the others
    "core/gossip_weights.py",  # rounded in `extreme_eigenvalues`; zeta is only told
    "core/lanczos.py",
    "core/lanczos_vectors.py",
    "core/agreement.py",  # how fast servers agree is only told
    "core/breakdown_points.py",
    "core/mixing.py",  # `contraction`
    "sim/simulate.py",  # how far servers are apart
}


def _different(tree: ast.Module) -> list[int]:
    """The lines of a file where it computes what other CPUs would compute differently."""
    found = []
    for node in ast.walk(tree):
        by_name = (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "np"
            and node.attr in DIFFERENT
        )
        product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
        if isinstance(node, ast.expr) and (by_name or product):
            found.append(node.lineno)
    return sorted(found)


def test_the_rule_sees_what_it_forbids() -> None:
    assert _different(ast.parse("a = np.exp(x)\nb = shares @ steps\nc = np.sqrt(x)")) == [1, 2]


def test_nothing_that_decides_depends_on_the_cpu() -> None:
    found = {}
    for package in DECIDING:
        for path in sorted((SOURCE / package).rglob("*.py")):
            name = path.relative_to(SOURCE).as_posix()
            lines = _different(ast.parse(path.read_text(encoding="utf-8")))
            if lines and name not in TOLD:
                found[name] = lines
    assert not found, f"take sdfeel.core.portable's functions: {found}"
