"""Is a learning rate within what the theorems cover? Said in one sentence."""

from sdfeel.theory import synchronous


def warning(
    learning_rate: float, smoothness: float, tau1: int, tau2: int, zeta: float, alpha: int
) -> str | None:
    """What to tell a person about a learning rate that Theorem 1 does not cover; None if it does.

    `zeta` 0 stands for a cloud that averages everything.

    >>> warning(0.001, 1.0, 5, 1, 0.8257, 1) is None
    True
    >>> print(warning(0.05, 1.0, 5, 1, 0.8257, 1))
    learning rate 0.05 is above 0.00673, up to which convergence is proven for tau1=5, tau2=1, \
alpha=1 (estimated L=1, zeta=0.826); larger steps often work, but nothing is promised
    """
    largest = synchronous.largest_step(smoothness, tau1 * tau2, zeta**alpha)
    if learning_rate <= largest:
        return None
    return (
        f"learning rate {learning_rate:g} is above {largest:.3g}, up to which convergence is "
        f"proven for tau1={tau1}, tau2={tau2}, alpha={alpha} (estimated L={smoothness:.3g}, "
        f"zeta={zeta:.3g}); larger steps often work, but nothing is promised"
    )
