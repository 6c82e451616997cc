"""Commands are imported only when called, and help says what they say themselves."""

import pytest

from sdfeel import cli
from sdfeel.cli import bench
from sdfeel.cli.lazy import Home

HOMES = {**cli.COMMANDS, **{f"bench {name}": home for name, home in bench.COMMANDS.items()}}


@pytest.mark.parametrize("words", HOMES)
def test_the_list_of_commands_says_what_each_command_says_of_itself(words: str) -> None:
    home: Home = HOMES[words]
    told = home.command(words.split()[-1]).help
    assert " ".join(told.split("\n\n")[0].split()) == home.help
