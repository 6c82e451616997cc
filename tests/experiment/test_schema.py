import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, cast, get_origin, get_type_hints

import numpy as np
import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.scheme import meanings
from sdfeel.experiment.build import build_scheme
from sdfeel.experiment.loading import ELSEWHERE, checked, keys, load, template
from sdfeel.experiment.schema import CompressionSection, Experiment
from sdfeel.schemes import SCHEMES
from sdfeel.schemes.async_sd_feel import AsyncSDFeel


def test_nothing_given_means_all_defaults() -> None:
    assert load() == Experiment()
    assert load().network.clients == 50
    assert load().scheme.name == "sd-feel"


def test_settings_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text('seed = 3\n[scheme]\nname = "hierfavg"\ntau1 = 7\n[network]\ngraph = "star"\n')
    found = load(file, ["scheme.tau1=9", "network.graph=complete", "training.momentum=0.5"])
    assert found.seed == 3
    assert found.scheme.name == "hierfavg"
    assert found.scheme.options == {"tau1": 9}
    assert found.network.graph == "complete"
    assert found.training.momentum == 0.5


def test_the_template_is_the_experiment_with_comments() -> None:
    text = template(Experiment())
    assert checked(tomllib.loads(text)) == Experiment()
    for key, help_text in keys().items():
        assert help_text, f"{key} has no help text"
        assert f"# {help_text.splitlines()[0]}" in text


def test_keys_may_be_written_with_dots_wherever_an_experiment_is_a_mapping() -> None:
    nested = {"scheme": {"name": "hierfavg", "tau1": 3}, "network": {"clients": 6}, "seed": 2}
    dotted = {"scheme.name": "hierfavg", "scheme.tau1": 3, "network.clients": 6, "seed": 2}
    mixed = {"scheme": "hierfavg", "scheme.tau1": 3, "network": {"clients": 6}, "seed": 2}
    assert checked(nested) == checked(dotted)
    with pytest.raises(InputError, match=r"unknown key 'network\.client'"):
        checked({"network.client": 6})
    with pytest.raises(InputError, match="unknown key 'net'"):
        checked({"net.work.clients": 6})
    assert checked(mixed) == checked(nested)


def test_a_written_experiment_reads_back_equal() -> None:
    chosen = load(None, ["model.options={hidden = 9}", "data.directory='a \"b\" \\\\ c'", "seed=4"])
    again = checked(tomllib.loads(chosen.text()))
    assert again == chosen
    assert again.fingerprint == chosen.fingerprint


def test_the_fingerprint_sees_what_decides_and_nothing_else() -> None:
    base = load().fingerprint
    assert load(None, ["seed=1"]).fingerprint != base
    assert load(None, ["scheme.tau1=6"]).fingerprint != base
    assert load(None, ["checkpoint.every_seconds=3"]).fingerprint == base


def test_file_names_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.txt").write_text("0 1\n")
    (tmp_path / "ring").mkdir()  # a folder must not hide the topology of that name
    (tmp_path / "e.toml").write_text('[network]\ngraph = "g.txt"\n')
    assert load(tmp_path / "e.toml").network.graph == str(tmp_path / "g.txt")
    monkeypatch.chdir(tmp_path)
    assert load(None, ["network.graph=g.txt"]).network.graph == str(tmp_path / "g.txt")
    assert load(None, ["network.graph=ring"]).network.graph == "ring"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("network.clinets=3", "unknown key 'network.clinets': did you mean 'network.clients'?"),
        ("netwrok.clients=3", "unknown key 'netwrok': did you mean 'network'?"),
        ("training.lr=0.1", "here it is training.learning_rate"),
        ("training.epochs=3", "here it is training.iterations"),
        ("data.alpha=0.3", "here it is data.concentration (Dirichlet)"),
        ("network.num_clients=3", "here it is network.clients"),
        ("network.clients=0", "network.clients must be at least 1, got 0"),
        ("network.clients=many", "network.clients must be a whole number, got 'many'"),
        ("training.learning_rate=-1", "training.learning_rate must be above 0, got -1"),
        ("training.engine=fast", "training.engine must be 'auto', 'loop'"),
        ("network=3", "network is a section with keys, got 3"),
        ("network.clients.more=3", "network.clients must be a whole number"),
        ("noequals", "'noequals' is not a setting: write section.key=value"),
    ],
)
def test_a_wrong_setting_gets_one_clear_sentence(setting: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(None, [setting])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"seed = = 3", "is not valid TOML"), (b"\xff\xfe", "line 1 is not UTF-8 text")],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "e.toml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        load(file)
    with pytest.raises(InputError, match=r"no experiment file .*: write one with `sdfeel init"):
        load(tmp_path / "absent.toml")


def test_none_is_a_word_where_a_key_says_so_and_nothing_elsewhere() -> None:
    chosen = load(None, ["compression.uplink=none", "compression.backhaul=none"])
    assert chosen.compression == CompressionSection()
    again = load(None, ["compression.uplink=uniform", "compression.uplink=None"])
    assert again.compression.uplink == "none"
    assert load(None, ["network.changes=none"]).network.changes is None


@pytest.mark.parametrize("name", SCHEMES)
def test_an_option_of_a_scheme_can_be_none_where_its_text_says_so(name: str) -> None:
    told = [key for key, text in meanings(SCHEMES[name]).items() if "(none:" in text]
    for key in told:
        by_setting = load(None, [f"scheme.name={name}", f"scheme.{key}=none"])
        by_file = checked({"scheme": {"name": name, key: "none"}})
        assert build_scheme(by_setting)[0] == build_scheme(by_file)[0] == SCHEMES[name]()


def test_an_option_of_an_earlier_version_is_refused_by_name() -> None:
    chosen = load(None, ["scheme.name=joint", "scheme.worth=0.5"])
    with pytest.raises(
        InputError, match=r"scheme\.worth belonged to joint's old .* set scheme\.divergence"
    ):
        build_scheme(chosen)


@pytest.mark.parametrize("word", ELSEWHERE)
def test_names_of_other_programs_lead_to_keys_that_exist(word: str) -> None:
    options = {f"scheme.{name}" for scheme in SCHEMES.values() for name in meanings(scheme)}
    for key in re.findall(r"[a-z]+\.[a-z_0-9]+", ELSEWHERE[word]):
        assert key in keys().keys() | options


WRONG = {"a whole number": (True, "3", 3.0), "a number": (True, "0.5"), "true or false": (1, "yes")}


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_options_of_schemes_are_as_strict_as_all_other_keys(name: str) -> None:
    for each in fields(cast(Any, SCHEMES[name])):
        usual = getattr(SCHEMES[name](), each.name)
        kinds = {bool: "true or false", int: "a whole number", float: "a number"}
        if type(usual) not in kinds:
            continue
        words = kinds[type(usual)]
        for given in WRONG[words]:
            experiment = checked({"scheme": {"name": name, each.name: given}})
            with pytest.raises(InputError, match=rf"scheme\.{each.name} must be {words}, got"):
                build_scheme(experiment)


def test_a_list_of_numbers_in_a_program_is_one_in_a_file() -> None:
    asked = checked({"scheme": {"name": "async-sd-feel", "deadline": [1.0, 2]}})
    assert build_scheme(asked)[0] == AsyncSDFeel(deadline=cast(Any, [1.0, 2]))
    assert AsyncSDFeel(deadline=cast(Any, np.array([1.0, 2.0]))) == AsyncSDFeel(deadline=(1.0, 2.0))


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_word_that_an_option_does_not_take_is_refused(name: str) -> None:
    scheme = SCHEMES[name]
    words = [n for n, hint in get_type_hints(scheme).items() if get_origin(hint) is Literal]
    for each in words:
        with pytest.raises(InputError, match=rf"unknown scheme\.{each} 'nonsense'"):
            scheme(**{each: "nonsense"})


class Plain:
    """A scheme that is not a dataclass: its class is named in a file."""

    def __init__(self, *given: int) -> None:
        if given != self.wanted:
            raise TypeError("three numbers, please")

    wanted: tuple[int, ...] = ()
    adapt = lanes = work = mix = None


class Demanding(Plain):
    wanted = (1, 2, 3)


def test_a_scheme_of_ones_own_need_not_be_a_dataclass() -> None:
    here = __name__
    made, _ = build_scheme(checked({"scheme": {"name": f"{here}:Plain"}}))
    assert isinstance(cast(Any, made).inner, Plain)
    asked = checked({"scheme": {"name": f"{here}:Demanding"}})
    with pytest.raises(InputError, match=r"three numbers, please .*make it a frozen dataclass"):
        build_scheme(asked)
