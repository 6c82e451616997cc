"""A user's own scheme is held to what it promises; schemes that keep their promises pass."""

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.checked_schemes import Checked
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.mixing import broadcast, collect, gossip, of_matrix, of_rows
from sdfeel.core.network import Network, Shelf, clustered
from sdfeel.core.scheme import Mix, Work
from sdfeel.core.staleness import Clocks
from sdfeel.schemes import SCHEMES
from tests.examples import examples

KINDS = ("client-server", "client-cloud", "server-server", "server-cloud")


def network(servers: int, clients: int, seed: int) -> Network:
    draws = np.random.default_rng(seed)
    home = np.concatenate([np.arange(servers), draws.integers(0, servers, clients - servers)])
    return clustered(
        draws.integers(1, 30, clients).tolist(), draws.permutation(home), links("path", servers)
    )


def decisions(scheme: Any, net: Network, seed: int = 0) -> Decisions:
    speeds = np.random.default_rng(seed).uniform(0.5, 2, len(net.samples))
    return Decisions.of(
        scheme,
        net,
        Cost(speeds, 1e3, dict.fromkeys(KINDS, 1e3)),  # type: ignore[arg-type]
        seed=seed,
    )


def a_few_rounds(made: Decisions) -> None:
    clocks = Clocks.fresh(len(made.net.servers))
    for number in range(len(made.lanes)):
        for k in range(3):
            made.round(number, k, clocks)


@pytest.mark.parametrize("name", sorted(SCHEMES))
@examples(4)
@given(servers=st.integers(1, 4), more=st.integers(0, 5), seed=st.integers(0, 99))
def test_every_scheme_of_ours_keeps_its_promises(
    name: str, servers: int, more: int, seed: int
) -> None:
    options = {"scheduled": 1} if name == "feel" else {}
    scheme = SCHEMES[name](**options)
    a_few_rounds(decisions(Checked(scheme), network(servers, servers + more, seed), seed))


@dataclass(frozen=True)
class Mine:
    """A plain scheme, except that `method` gives `answer`."""

    method: str = ""
    answer: Any = None

    def adapt(self, net: Network) -> Any:
        return self.answer if self.method == "adapt" else net

    def lanes(self, setting: Any) -> Any:
        return self.answer if self.method == "lanes" else (setting.servers,)

    def work(self, view: Any) -> Any:
        usual = Work(broadcast(view.net), 2)
        if self.method != "work":
            return usual
        return replace(usual, **self.answer) if isinstance(self.answer, dict) else self.answer

    def mix(self, view: Any, done: Any) -> Any:
        usual = Mix(collect(view.net), gossip(view.net, 1))
        if self.method != "mix":
            return usual
        return replace(usual, **self.answer) if isinstance(self.answer, dict) else self.answer


def checked(mine: Mine) -> Checked:
    return Checked(cast(Any, mine))


NET = network(3, 6, 0)
ANYTHING = st.one_of(
    st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=3), st.floats()
)


def test_a_plain_scheme_passes() -> None:
    a_few_rounds(decisions(checked(Mine()), NET))


@given(method=st.sampled_from(["adapt", "lanes", "work", "mix"]), answer=ANYTHING)
def test_an_answer_of_another_kind_is_refused_by_the_name_of_its_method(
    method: str, answer: Any
) -> None:
    with pytest.raises(InputError, match=rf"Mine\.{method} gave"):
        a_few_rounds(decisions(checked(Mine(method, answer)), NET))


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("lanes", ((0, 1),), "leaves out server 2"),
        ("lanes", ((0, 1, 7),), "gave 7: servers are numbered 0 to 2"),
        ("lanes", ((), (0, 1, 2)), "such as"),
        ("lanes", ((0, 1), (1, 2)), "puts server 1 into two lanes"),
        ("work", {"down": replace(broadcast(NET), via=cast(Any, "pigeon"))}, "gave 'pigeon': mess"),
        ("mix", {"across": of_rows({0: {1: 1.0}}, via=cast(Any, "pigeon"))}, "gave 'pigeon'"),
        ("work", {"steps": 0}, "gave 0: steps must be a whole number of at least 1"),
        ("work", {"steps": 2.5}, "steps must be a whole number"),
        ("work", {"deadline": 0.0}, "a deadline must be above 0"),
        ("work", {"deadline": float("nan")}, "a deadline must be above 0"),
        ("work", {"each": np.array([1, 2])}, "each of the 6 clients"),
        ("work", {"each": np.full(6, -1)}, "`each` must be at least 0"),
        ("work", {"rates": np.full(6, np.nan)}, "`rates` must be above 0"),
        ("work", {"share": np.zeros(6)}, "`share` must be above 0"),
        ("work", {"ends": np.full(6, np.inf)}, "`ends` must be finite"),
        ("work", {"lasts": -1.0}, "`lasts` must be at least 0"),
        ("work", {"shift": of_rows({0: {-1: 1.0}})}, "gave -1"),
        ("work", {"down": of_rows({9: {0: 1.0}})}, "clients are numbered 0 to 5"),
        ("mix", {"up": of_rows({0: {0: 2.0}})}, "weights that sum to 2"),
        ("mix", {"up": of_rows({9: {0: 1.0}})}, "servers are numbered 0 to 2"),
        ("mix", {"up": of_rows({0: {9: 1.0}})}, "clients are numbered 0 to 5"),
        ("mix", {"across": of_matrix(np.ones((3, 3)))}, "weights that sum to 3"),
        ("mix", {"across": of_matrix(np.full((3, 3), np.nan))}, "weights must be finite"),
        ("mix", {"across": of_matrix(np.ones((3, 3)) / 3)}, "no link joins them"),
        ("mix", {"across": 3}, "made of Mixings"),
        ("mix", {"payload": "models"}, "a payload is"),
        ("mix", {"over": 3}, "`over` is the reason"),
        ("mix", {"memory": "a"}, "memory must be a mapping"),
        ("mix", {"figures": {"a": "b"}}, "figures must be a mapping"),
    ],
)
def test_nonsense_is_refused_with_a_way_out(method: str, answer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        a_few_rounds(decisions(checked(Mine(method, answer)), NET))
    assert f"Mine.{method}" in str(caught.value)


def test_what_is_on_shelves_may_be_added_in_any_measure() -> None:
    shelf = Shelf("step", "server", start="zero")
    kept = replace(NET, shelves=(shelf,))
    row = int(kept.shelf("step")[0])
    scheme = checked(Mine("mix", {"across": of_rows({0: {0: 1.0, row: 0.5}})}))
    a_few_rounds(decisions(scheme, kept))
