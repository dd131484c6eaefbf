"""Makes cases.jsonl with transformers' own template engine (run by hand, with Python 3.11 for its Unicode tables):

    pip install transformers==5.23.0 jinja2==3.1.6 && python make.py

Each row: "template", and "text" with the byte ranges of {% generation %} blocks as "generations", or "error": true.
Templates whose variables differ from variables.json carry "variables". Sources: expressions.txt (one a line, each
becomes {{ [expression] }} or, where several stand on a line, one tuple), statements.py, templates/*.jinja with the
conversations in conversations.py.
"""

import json
import pathlib
import warnings

from transformers.utils import chat_template_utils as reference

from conversations import CONVERSATIONS, VARIABLES
from statements import STATEMENTS

warnings.simplefilter("ignore")
HERE = pathlib.Path(__file__).parent


def render(template, variables):
    """(text, byte ranges of generation blocks), or None for an error."""
    try:
        compiled = reference._compile_jinja_template(template)
        text, spans = reference._render_with_assistant_indices(
            compiled,
            variables.get("messages", []),
            variables.get("tools"),
            variables.get("documents"),
            variables.get("add_generation_prompt", False),
            **{
                k: v
                for k, v in variables.items()
                if k not in ("messages", "tools", "documents", "add_generation_prompt")
            },
        )
        text.encode()
    except Exception:
        return None
    return text, [[len(text[:i].encode()) for i in span] for span in spans]


def row(template, variables, extra):
    out = dict(extra, template=template)
    result = render(template, variables)
    if result is None:
        return dict(out, error=True)
    out["text"] = result[0]
    if result[1]:
        out["generations"] = result[1]
    return out


def main():
    rows = []
    for line in (HERE / "expressions.txt").read_text().split("\n"):
        if line:
            rows.append(row("{{ " + line + " }}", VARIABLES, {}))
    for template in STATEMENTS:
        rows.append(row(template, VARIABLES, {}))
    (HERE / "variables.json").write_text(json.dumps(VARIABLES, ensure_ascii=False) + "\n")
    (HERE / "expressions.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
    rows = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        for number, variables in enumerate(CONVERSATIONS):
            for prompt in (False, True):
                result = row(
                    path.read_text(),
                    dict(variables, add_generation_prompt=prompt),
                    {"file": path.name, "conversation": number, "add_generation_prompt": prompt},
                )
                del result["template"]
                rows.append(result)
    (HERE / "conversations.json").write_text(json.dumps(CONVERSATIONS, ensure_ascii=False) + "\n")
    (HERE / "templates.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))


main()
