#!/usr/bin/env python3
"""What jinja2 renders under transformers' settings, for tests/data/test_jinja.c.

    data_jinja.py            remakes tests/reference/data/jinja.json: our own templates (data_jinja_cases.py), which use the whole syntax
    data_jinja.py --check    compares instead; then renders the chat templates that trl's wheel carries (models' own texts and trl's marked
                             ones, none committed) over 40 conversations, and lets tests/data/test_jinja compare each byte, each refusal's
                             message and each {% generation %} span. Exit 1 on a difference.
    data_jinja.py --check FILE...   also the .jinja, tokenizer_config.json or .gguf files named
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import transformers.utils.chat_template_utils as chat

from data_jinja_cases import OWN, VARIABLES, conversations

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests/reference/data/jinja.json"
CASES = ROOT / "build/reference/jinja-cases.json"
TRL = "trl==1.16.0"


class Clock(datetime.datetime):
    """strftime_now's day, patched as the tests' date says."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


chat.datetime = Clock


def render(text, variables):
    """{"text", "spans"} in bytes, or {"error"}."""
    try:
        template = chat._compile_jinja_template(text)
        blocks, marks = [], []
        with template.environment.activate_tracker(blocks, marks):
            for block in template.generate(**variables):
                blocks.append(block)
        rendered = "".join(blocks)
        rendered.encode()
    except Exception as fault:
        return {"error": str(fault)}
    offset = lambda at: len(rendered[:at].encode())
    result = {"text": rendered}
    if marks:
        result["spans"] = [offset(at) for pair in marks for at in pair]
    return result


def published(files):
    """The templates in trl's wheel, then those of `files`."""
    if not importlib.util.find_spec("trl"):
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", TRL], check=True)
    for path in sorted((pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates").glob("*.jinja")):
        yield "trl " + path.stem, path.read_text()
    for path in files:
        yield from ((f"{path.name}", text) for text in texts_of(path))


def texts_of(path):
    if path.suffix == ".gguf":
        from gguf import GGUFReader

        yield GGUFReader(path).fields["tokenizer.chat_template"].contents()
    elif path.suffix == ".json":
        yield json.loads(path.read_text())["chat_template"]
    else:
        yield path.read_bytes().decode()


def compare_published(files):
    talks, table, templates, own = conversations(), [], [], 0
    for talk in talks:
        for prompt in (False, True):
            table.append({"documents": None, "tools": None, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": prompt} | talk)
    rendered = refused = 0
    for name, text in published(files):
        cases = []
        for i, variables in enumerate(table):
            variables = variables | {"messages": chat._alias_reasoning_fields(variables["messages"])}
            table[i] = variables
            one = {"variables": i} | render(text, variables)
            rendered, refused = rendered + ("text" in one), refused + ("error" in one)
            cases.append(one)
        own += not name.endswith("_training")
        templates.append({"name": name, "text": text, "cases": cases})
    print(f"{len(templates)} published templates, {own} of them as the models ship them, x {len(talks)} conversations x 2: "
          f"{rendered} rendered, {refused} refused")
    CASES.parent.mkdir(parents=True, exist_ok=True)
    CASES.write_text(json.dumps({"variables": table, "templates": templates}))
    subprocess.run(["make", "-s", "build/release/tests/data/test_jinja"], cwd=ROOT, check=True)
    done = subprocess.run([ROOT / "build/release/tests/data/test_jinja"], cwd=ROOT, env=os.environ | {"RH_JINJA_CASES": str(CASES)})
    return own >= 25 and done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("file", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    templates = []
    for name, text, which in OWN:
        cases = [{"variables": i} | render(text, VARIABLES[i]) for i in which]
        templates.append({"name": name, "text": text, "cases": cases})
    made = json.dumps({"variables": VARIABLES, "templates": templates}, indent=0, ensure_ascii=True) + "\n"
    good = True
    if not options.check:
        OUT.write_text(made)
    elif OUT.read_text() != made:
        print(f"{OUT}: differs from what is rendered now")
        good = False
    print(f"{len(OWN)} templates of our own, {sum(len(t['cases']) for t in templates)} renderings")
    if options.check:
        good = compare_published(options.file) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
