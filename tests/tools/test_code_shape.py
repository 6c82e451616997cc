"""The shape of the code: names that mean one thing, files that can be read in one go."""

import code_shape

from tests.engine.native.helpers import needs_compiler


def test_few_class_names_are_defined_twice() -> None:
    assert len(code_shape.repeated_classes(code_shape.sources())) <= 4


def test_no_file_is_too_long_to_read() -> None:
    assert max(code_shape.lengths(code_shape.sources()).values()) <= 500


def test_commands_import_at_the_top_of_their_files() -> None:
    cli = {name: text for name, text in code_shape.sources().items() if name.startswith("cli/")}
    assert code_shape.inner_imports(cli) == 0


def test_what_was_counted_is_what_is_there() -> None:
    texts = {
        "a.py": "class A: pass\ndef f():\n    import b\n",
        "b.py": "from sdfeel.a import A\nclass A: pass\n",
    }
    assert code_shape.repeated_classes(texts) == {"A": ["a.py:1", "b.py:2"]}
    assert code_shape.importers(texts) == {"a.py": {"b.py"}, "b.py": set()}
    assert code_shape.inner_imports(texts) == 1


@needs_compiler
def test_the_start_of_a_run_stays_short() -> None:
    path = code_shape.crossed()
    assert path.start == path.records | path.compiling | path.rest
    assert len(path.rest) <= 120
    assert len(code_shape.files(path.rest)) <= 32
    assert len(path.start) <= 212
    assert {code for _, code in path.tree} == path.start
    assert [(level, code.co_name) for level, code in path.tree[:2]] == [
        (0, "start"),
        (1, "prepare"),
    ]
