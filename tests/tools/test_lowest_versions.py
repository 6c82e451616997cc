"""The lowest versions that the package allows are read off its own declaration."""

import pytest
from lowest_versions import lowest, main


def test_each_dependency_has_its_lowest_version_and_torch_the_kept_one() -> None:
    declared = ["numpy>=1.26", "torch>=2.6"]
    assert [*lowest(declared, ["numpy==2.4.6", "torch==2.13.0"])] == [
        "numpy==1.26",
        "torch==2.13.0",
    ]


def test_a_dependency_without_a_lowest_version_is_reported() -> None:
    with pytest.raises(ValueError, match="'numpy' declares no lowest version: write name>=version"):
        [*lowest(["numpy"], [])]


def test_the_packages_own_dependencies_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    main(["dash", "deploy"])
    found = capsys.readouterr().out.split()
    assert {"numpy==1.26", "pydantic_core"} <= set(found)
