"""The commands for newcomers are found, and those that the image tests leave out are on their pages."""

from __future__ import annotations

from images import newcomer_commands as newcomer

PAGE = newcomer.pages()


def test_every_command_is_found() -> None:
    indented = {line for line in PAGE.splitlines() if line.startswith("    elastane ")}
    fenced = newcomer.three_lines(PAGE)
    assert len(indented) > 15
    found = [one for one in newcomer.commands(PAGE) if one.text.startswith("elastane ")]
    assert len(found) == len(indented)
    compile(fenced, "train.py", "exec")


def test_what_is_left_out_is_on_the_page() -> None:
    texts = [one.text for one in newcomer.commands(PAGE)]
    for start in newcomer.LEFT_OUT:
        assert any(text.startswith(start) for text in texts), start


def test_an_added_command_is_run() -> None:
    added = PAGE.replace("    elastane cost ", "    elastane bills --all\n    elastane cost ")
    before, after = (newcomer.commands_to_run(page, at_job=True) for page in (PAGE, added))
    assert set(after) - set(before) == {"elastane bills --all"}


def test_continued_lines_are_one_command() -> None:
    page = "Text.\n\n    elastane run --ests 4 \\\n        train.py\n    ls\n\nMore.\n"
    assert [one.text.split() for one in newcomer.commands(page)] == [
        ["elastane", "run", "--ests", "4", "train.py"],
        ["ls"],
    ]


def test_the_tutorial_has_its_scripts_and_commands() -> None:
    page = newcomer.TUTORIAL.read_text()
    assert set(newcomer.saved_scripts(page)) == {"stock.py", "train.py"}
    script = newcomer.shell_script(page)
    assert script.count("elastane ") > 5
    assert "docker" not in script
