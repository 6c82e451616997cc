"""Schemes treat options as they declare: they use, ignore or refuse them."""

import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.tolerance import IGNORED, OPTIONS, YES, Tolerates, check, ignored
from sdfeel.schemes import SCHEMES, asynchronous
from tests.schemes.test_contract import networks, rounds

DECLARED = {name: kind.tolerates for name, kind in SCHEMES.items()}
every_scheme = pytest.mark.parametrize("name", SCHEMES)


@every_scheme
def test_models_travel_on_the_links_that_a_scheme_declares(name: str) -> None:
    used = set()
    for _, _, mix in rounds(SCHEMES[name](), networks()[0], 8):
        used.add(mix.up.via)
        used |= {stage.via for stage in mix.stages if stage.crossings}
    assert used == set(DECLARED[name].links)


@every_scheme
def test_every_option_is_used_or_ignored_or_refused_with_both_names(name: str) -> None:
    for option, about in OPTIONS.items():
        asked = [(option, about.keys)]
        verdict = DECLARED[name].verdict(option)
        assert ignored(DECLARED[name], asked) == ([about.keys] if verdict == IGNORED else [])
        if verdict in (YES, IGNORED):
            check(name, DECLARED[name], asked, DECLARED)
            continue
        with pytest.raises(InputError) as refused:
            check(name, DECLARED[name], asked, DECLARED)
        said = str(refused.value)
        assert said.startswith(f"scheme.name = {name} {verdict}, but {about.keys} ")
        assert said.endswith(", or choose sd-feel")


def test_the_recommended_scheme_uses_everything_that_is_set() -> None:
    picky = Tolerates(mixing="needs no weights")
    asked = [("mixing", "network.mixing"), ("absent_cloud", "network.changes")]
    with pytest.raises(InputError, match="or choose sd-gt"):  # it gossips, and has a cloud
        check("picky", picky, asked, DECLARED)
    others = {name: told for name, told in DECLARED.items() if name != "sd-gt"}
    with pytest.raises(InputError, match=r"leave out network.mixing$"):
        check("picky", picky, asked, others)  # gossip needs no cloud, and a cloud no weights
    with pytest.raises(InputError, match="or choose anything"):
        check("picky", picky, asked, others | {"anything": Tolerates()})


def test_some_schemes_wait_for_nobody() -> None:
    assert [name for name in SCHEMES if asynchronous(name)] == [
        "async-sd-feel",
        "tiers",
        "fedasync",
        "fedbuff",
    ]
