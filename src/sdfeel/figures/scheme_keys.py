"""The schemes' keys, as figures name them."""


def sd_feel(tau1: int = 5, tau2: int = 1, alpha: int = 1) -> tuple[str, ...]:
    return (
        "scheme.name=sd-feel",
        f"scheme.tau1={tau1}",
        f"scheme.tau2={tau2}",
        f"scheme.alpha={alpha}",
    )


def hierfavg(tau1: int = 5, tau2: int = 1) -> tuple[str, ...]:
    return ("scheme.name=hierfavg", f"scheme.tau1={tau1}", f"scheme.tau2={tau2}")


def fedavg(tau1: int = 5, participants: int | None = None) -> tuple[str, ...]:
    few = () if participants is None else (f"scheme.participants={participants}",)
    return ("scheme.name=fedavg", f"scheme.tau1={tau1}", *few)


def feel(tau1: int = 5, scheduled: int = 5, pool: int | None = None) -> tuple[str, ...]:
    within = () if pool is None else (f"scheme.pool_size={pool}",)
    return ("scheme.name=feel", f"scheme.tau1={tau1}", f"scheme.scheduled={scheduled}", *within)


def async_sd_feel(theta_min: int, psi: str = "paper", balanced: bool = False) -> tuple[str, ...]:
    return (
        "scheme.name=async-sd-feel",
        f"scheme.theta_min={theta_min}",
        f"scheme.psi={psi}",
        f"scheme.balanced={'true' if balanced else 'false'}",
    )


def devices(spread: float) -> str:
    """H, the fastest device over the slowest, at the same mean speed."""
    return f"devices.spread={spread:g}"
