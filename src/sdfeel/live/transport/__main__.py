"""`python -m sdfeel.live.transport` prints how fast calls are on this machine."""

import os

from sdfeel.live.transport.measure import measure


def main() -> None:
    print(f"{'':6}{'body':>9}{'best':>12}{'median':>12}{'speed':>14}")
    for speed in measure():
        rate = f"{speed.megabytes_per_second:,.0f} MB/s" if speed.bytes > 10**6 else ""
        print(
            f"{speed.kind:6}{speed.size:>9}{speed.best * 1000:9.2f} ms"
            f"{speed.median * 1000:9.2f} ms{rate:>14}"
        )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
