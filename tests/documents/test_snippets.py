"""What is wrong with a snippet is found: on small pages, written for it."""

from pathlib import Path

import pytest
from support.cluster import Cluster
from support.documents import ROOT, PageRun, starts_a_cluster

from tools.snippets.check import named_problems, problems
from tools.snippets.output import matches
from tools.snippets.page import How, SnippetError, read
from tools.snippets.shell import commands


def page(language: str, text: str, comment: str = "") -> str:
    above = f"<!-- {comment} -->\n" if comment else ""
    return f"# Page\n\n{above}```{language}\n{text}\n```\n"


def wrong(text: str) -> list[str]:
    return problems(read(text, "page.md"), ROOT)


CLASSES = {
    How.RUN: page("python", "1"),
    How.GIVEN: "<!-- snippet: given\npenstock topic create t\n-->\n",
    How.KUBERNETES: page("sh", "kubectl get pods", "snippet: kubernetes"),
    How.ELSEWHERE: page("python", "1", "snippet: run by tests/documents/test_snippets.py"),
    How.VALUE: page("yaml", "a: 1"),
    How.OUTPUT: page("text", "a", "output of the last"),
    How.PICTURE: page("text", "a"),
}


@pytest.mark.parametrize("how", How, ids=lambda how: how.name)
def test_a_comment_and_the_language_say_how_a_snippet_is_tested(how: How) -> None:
    (snippet,) = read(CLASSES[how], "page.md")
    assert snippet.how is how


def test_a_snippet_knows_where_it_stands_without_the_indentation_of_its_fence() -> None:
    fenced = "  ```python\n  if 1:\n      2\n  ```\n"
    text = f'# A\n## B\n\n- one\n\n  <!-- snippet: until "x" -->\n{fenced}'
    (snippet,) = read(text, "page.md")
    assert (snippet.place, snippet.heading) == ("page.md:8", "B")
    assert (snippet.text, snippet.detail) == ("if 1:\n    2\n", "x")


def test_commands_of_ours_need_no_language() -> None:
    languages = {"penstock status": "bash", "$ kubectl get pods\nnone": "console"}
    for text, language in languages.items():
        (snippet,) = read(page("", text), "page.md")
        assert (snippet.language, snippet.how) == (language, How.RUN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (page("", "┌──┐"), r"page.md:3: a snippet in no language; it must be python, "),
        (page("ruby", "puts 1"), r"page.md:3: a snippet in 'ruby'"),
        (page("sh", "ls", "snippet: somehow"), r"page.md:4: 'somehow' is no way"),
        (page("yaml", "a: 1", 'snippet: until "x"'), r"is no way to test"),
        ("<!-- snippet: kubernetes -->\n\n```sh\nls\n```", r"page.md:1: no snippet follows"),
        ("<!-- snipet: kubernetes -->\n```sh\nls\n```", r"page.md:1: .* is no comment"),
        (page("text", "a", "output of last"), r"page.md:4: 'output of last' is no way to test"),
        ("~~~\nls\n~~~", r"page.md:1: '~~~' begins no snippet"),
        ("```python title\n1\n```", r"page.md:1: '```python title' begins no snippet"),
        ("```sh\nls\n", r"page.md:1: the snippet does not end"),
        ("<!-- snippet: given\nls\n", r"page.md:1: the comment does not end"),
    ],
)
def test_a_page_that_does_not_say_how_its_snippet_is_tested_is_refused(
    text: str, message: str
) -> None:
    with pytest.raises(SnippetError, match=message):
        read(text, "page.md")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("penstock topic lits", "there is no command lits; did you mean list"),
        ("penstock topic create t --partions 3", "there is no option --partions; did you mean"),
        ("penstock topic create t -p many", "--partitions is 'many'; it must be a whole number"),
        ("penstock topic create", "TOPIC is missing"),
        ("penstock topic", "names no command"),
        ("kubectl -n a penstock wy flights", "there is no command wy"),
        ("kubectl gett pods", "kubectl has no command gett"),
        ("kubectl get poods", "there is no kind poods"),
        ("kubectl -n a get pvc,topik -o name", "there is no kind topik"),
        ("kubectl wait cluster.penstock.de/flights --for=delete", "no kind cluster.penstock.de"),
        ("kubectl delete crd topic.penstock.dev topik.penstock.dev", "no CRD topik.penstock.dev"),
        ("kubectl explain cluster.spec.broker", "cluster.spec.broker: there is no field broker"),
        (
            "kubectl annotate pod a penstock.dev/paussed-",
            "reads an annotation or label penstock.dev/pa",
        ),
        (
            "kubectl get pods -l a=b,penstock.dev/clustr=a",
            "reads an annotation or label penstock.dev/c",
        ),
        ("helm instal x charts/penstock", "helm has no command instal"),
        ("helm install x charts/pen", "there is no chart charts/pen"),
        ("make everything", "make has no target everything"),
        ("python -m examples.grups.load", "there is no module examples.grups.load"),
        (".venv/bin/python tests/run.py", "there is no file tests/run.py"),
        ("e2e/cluster/upp", "there is no such file"),
        ("pip install 'penstock[locl]'", "penstock has no extra locl"),
        ("penstok status", "this program is not known"),
        ("echo a | penstock prduce t", "there is no command prduce"),
        ("penstock topic create $(penstock topic lits)", "there is no command lits"),
        ("echo 'a", "is no shell: No closing quotation"),
    ],
)
def test_a_wrong_command_is_found(command: str, message: str) -> None:
    (found,) = wrong(page("sh", command, "snippet: kubernetes"))
    assert found.startswith("page.md:5: ")
    assert message in found


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("for", "line 1: invalid syntax"),
        ("import penstock.clint", "there is no module penstock.clint"),
        ("from penstock.client import Produser", "penstock.client has no Produser"),
        ("Producer('a', linger=1)", "Producer takes no linger"),
        ("with Consumer('a') as c:\n    c.pol()", "Consumer has no pol"),
        ("c = Consumer('a')\nc.poll(max_record=1)", "c.poll takes no max_record"),
    ],
)
def test_a_program_that_takes_from_us_what_is_not_there_is_found(
    program: str, message: str
) -> None:
    (found,) = wrong(page("python", program, "snippet: kubernetes"))
    assert found.startswith("page.md:5: ")
    assert message in found


@pytest.mark.parametrize(
    ("language", "text", "message"),
    [
        ("yaml", "a: [", "is no yaml"),
        ("json", "{", "is no json"),
        ("toml", "a = ", "is no toml"),
        ("yaml", "kind: Cluster\nspec: {broker: 3}", "spec.broker is not a known field"),
        ("yaml", "kind: Topic\nspec: {partitions: none}", "spec.partitions is the string 'none'"),
        (
            "yaml",
            "apiVersion: penstock.dev/v1\nkind: Cluster",
            "apiVersion is the string 'penstock.dev/v1'",
        ),
    ],
)
def test_a_wrong_manifest_is_found(language: str, text: str, message: str) -> None:
    (found,) = wrong(page(language, text))
    assert message in found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`penstock topic lits`", "page.md:3: penstock topic lits: there is no command lits"),
        ("`kubectl penstock wy …`", "page.md:3: kubectl penstock wy …: there is no command wy"),
        ("`penstock\n  topic list --al`", "penstock topic list --al: there is no option --al"),
        ("`kubectl get poods`", "page.md:3: kubectl get poods: there is no kind poods"),
        ("`penstock consume 'a`", "is no shell"),
    ],
)
def test_a_wrong_command_in_a_text_is_found(text: str, found: str) -> None:
    (problem,) = named_problems(f"# Page\n\n{text}\n", "page.md")
    assert found in problem


def test_a_text_may_name_the_beginning_of_a_command_and_a_runbook_may_not() -> None:
    text = "`penstock txn abort`, `penstock txn`, `penstock import … --follow`, `penstock top`\n"
    assert named_problems(text, "docs/page.md") == []
    assert [one.split(";")[0] for one in named_problems(text, "docs/runbooks/page.md")] == [
        "docs/runbooks/page.md:1: penstock txn abort: ID is missing",
        "docs/runbooks/page.md:1: penstock txn: names no command",
    ]


def test_to_look_at_a_command_changes_nothing_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The option that installs completion would do so when it is parsed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert named_problems("`penstock --install-completion`\n", "page.md") == []
    assert list(tmp_path.iterdir()) == []


def test_the_text_of_a_page_is_what_stands_outside_its_snippets() -> None:
    text = page("sh", "echo `penstock lits`") + "`penstock list`\n"
    (problem,) = named_problems(text, "page.md")
    assert problem.startswith("page.md:6: penstock list: ")


def test_what_is_right_is_not_found_wrong() -> None:
    text = r"""
for each in $(kubectl get pvc -o name); do   # it's a loop
  kubectl annotate $each penstock.dev/confirm-delete=${each#*/} && kubectl delete $each
done
printf 'UA:first\n' | penstock produce flights -K : 2>/dev/null &
NAME=x penstock topic create "$NAME" \
  -p 3 > out.txt
make mutate PATHS=src
cat > worker.py <<'END' && true
import penstok
END
until penstock topic list; do :; done
"""
    assert wrong(page("bash", text)) == []
    assert ["penstock", "topic", "create", "1", "-p", "3"] in commands(text)
    groups = "kind: ConsumerGroup\nspec: {cluster: a}\n---\nkind: Deployment\nspec: {broker: 1}"
    assert wrong(page("yaml", groups)) == []
    assert wrong(page("python", "Consumer('a', group_id='b', **more).poll(max_records=1)")) == []


def test_a_test_that_runs_a_snippet_must_exist_and_name_the_page() -> None:
    assert wrong(page("sh", "ls", "snippet: run by tests/gone.py")) == [
        "page.md:5: tests/gone.py is no test"
    ]
    named = page("sh", "ls", "snippet: run by tests/conftest.py")
    (found,) = problems(read(named, "docs/nowhere.md"), ROOT)
    assert found.endswith("tests/conftest.py does not name docs/nowhere.md")


def test_output_needs_a_snippet_that_is_run() -> None:
    (found,) = wrong(page("text", "a", "output of the last"))
    assert found == "page.md:5: output of the last, but the snippet before it is not run"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a", "a\n\n", True),
        ("a", "ab", False),
        ("a", "a\nb", False),
        ("at … ms", "at 17 ms", True),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nb\nc", False),
        ("…", "", True),
        ("a.c", "abc", False),
    ],
)
def test_what_is_shown_is_compared_with_what_is_printed(
    shown: str, printed: str, same: bool
) -> None:
    assert matches(shown, printed) is same


HELLO = """
<!-- snippet: given
penstock topic create hello
-->
```python
from penstock.client import Producer
with Producer("localhost:9092") as producer:
    where = producer.send("hello", b"world").result()
```
```console
$ penstock consume hello -e
world
$ echo localhost:9092
127.0.0.1:9092
```
"""


@pytest.fixture
def running(shared_broker: Cluster, tmp_path: Path) -> "PageRun":
    return PageRun(tmp_path / "page", shared_broker)


def test_a_page_runs_in_its_order_in_one_namespace(running: PageRun) -> None:
    with running:
        running.run(read(HELLO + "```python\nprint(where.offset)\n```\n", "page.md"))
        running.run(read(CLASSES[How.OUTPUT].replace("\na\n", "\n0\n"), "page.md"))


def test_what_never_ends_is_interrupted_once_it_has_printed_the_text(running: PageRun) -> None:
    endless = "import signal\nprint('ready')\nsignal.pause()"
    with running:
        running.run(read(page("python", endless, 'snippet: until "ready"'), "page.md"))
        running.run(read(page("python", "print(signal.SIGINT)"), "page.md"))
        running.run(read(page("sh", "echo ready; tail -f /dev/null", 'snippet: until "ready"'), ""))


def test_what_a_page_leaves_to_a_test_runs_only_there(running: PageRun) -> None:
    left = page("sh", "false", "snippet: run by tests/here.py") + CLASSES[How.OUTPUT]
    with running:
        running.run(read(left, "page.md"))
        with pytest.raises(AssertionError, match=r"page.md:5: exit code 1"):
            running.run(read(left, "page.md"), left_to="tests/here.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (page("python", "\nprint(nobody)"), "page.md:4: failed\n.*NameError"),
        (page("python", "Producer('localhost:9092', linger=1)"), "page.md:4: failed\n"),
        (page("python", "1", 'snippet: until "x"'), "page.md:5: done"),
        (page("sh", "false; true"), "page.md:4: exit code 1"),
        (page("sh", "false | true"), "page.md:4: exit code 1"),
        (page("sh", "echo $nobody"), "page.md:4: exit code 1\n.*unbound variable"),
        (page("sh", "penstock topic describe nobody"), "page.md:4: exit code 1"),
        (page("sh", "echo a", 'snippet: until "x"'), "page.md:5 did not print 'x'"),
        (page("console", "$ echo a\nb"), "echo a\n.*shows\nb\n.*but this was printed:\na\n"),
    ],
)
def test_a_snippet_that_fails_fails_its_page(running: PageRun, text: str, message: str) -> None:
    with running, pytest.raises(AssertionError, match=f"(?s){message}"):
        running.run(read(text, "page.md"))


def test_a_page_may_start_its_own_cluster_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    text = HELLO.replace("penstock topic", "penstock local up --detach\npenstock topic", 1)
    snippets = read(text, "page.md")
    assert starts_a_cluster(snippets)
    with PageRun(tmp_path / "page", None) as page_run:
        page_run.run(snippets)
        assert page_run.processes()
    assert not page_run.processes()
