"""Calls a user's reward functions for unsloth-train: JSON lines on descriptor 3, one message a line.

in   load    functions [{id, file, module, name, style, label, kwargs, factory}], seed, tokenizer
     score   id, functions, prompts, texts, completions, completion_ids, columns, trainer_state
     quit
out  ready   pid, python, functions [{id, parameters, required, kwargs, async}]
     scores  id, function, rewards [number or null], metrics, extra, seconds
     error   id, function, type, message, traceback, row
"""

import sys

if sys.path[0] == "":  # a random.py of the user's is for the user's files
    del sys.path[0]

import copy
import functools
import importlib
import importlib.util
import inspect
import json
import math
import os
import random
import socket
import time
import traceback
import types

LABELS = ("label", "labels", "ground_truth", "answer", "solution")
OWN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


def kind(value):
    """'an int', 'a str'"""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


class Mistake(Exception):
    """What a function returned is no list of rewards; `row` where one row is to blame."""

    def __init__(self, message, row=None):
        super().__init__(message)
        self.row = row


@functools.lru_cache(maxsize=None)
def event_loop():
    import asyncio

    return asyncio.new_event_loop()


class Channel:
    def __init__(self):
        self.socket = socket.socket(fileno=3)
        self.socket.set_inheritable(False)
        self.socket.setblocking(True)
        self.lines = self.socket.makefile("rb")

    def read(self):
        line = self.lines.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def write(self, message):
        self.socket.sendall(encoded(message))


def encoded(message):
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    # A lone surrogate has no UTF-8.
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode("utf-8") + b"\n"


class Function:
    def __init__(self, spec):
        self.style, self.label, self.kwargs = spec["style"], spec["label"], spec["kwargs"]
        call = self.find(load_module(spec), spec["name"])
        if spec["factory"] or isinstance(call, type):
            call = call(**self.kwargs)
            self.kwargs = {}
        if not callable(call):
            raise TypeError(f"{spec['name']} is {kind(call)}, not a function")
        self.call = call
        self.is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)
        )
        self.parameters, self.required, self.takes_all = self.signature()

    def find(self, module, name):
        if self.style == "swift" and not hasattr(module, name) and name in getattr(module, "orms", {}):
            return module.orms[name]
        return getattr(module, name)

    def signature(self):
        """Names, those without a default, whether any other is taken; of what has no signature all is taken."""
        try:
            parameters = list(inspect.signature(self.call).parameters.values())
        except (TypeError, ValueError):
            return [], [], True
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if self.style in ("trl", "swift"):
            wrong = [p.name for p in parameters if p.kind == p.POSITIONAL_ONLY]
            if wrong:
                raise TypeError(f"the parameter '{wrong[0]}' takes no name; rewards are called by names")
        return (
            [p.name for p in named],
            [p.name for p in named if p.default is p.empty and p.name not in self.kwargs],
            any(p.kind == p.VAR_KEYWORD for p in parameters),
        )

    def columns_without_which_it_fails(self):
        if self.style == "verl":
            return []
        if self.style == "openrlhf":
            return [self.label] if self.label else []
        return [name for name in self.required if name not in OWN]


def load_module(spec):
    if not spec["file"]:
        return importlib.import_module(spec["module"])
    name = os.path.splitext(os.path.basename(spec["file"]))[0]
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == spec["file"]:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, spec["file"])
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


class Rows:
    """A message's rows in the forms that the styles want."""

    def __init__(self, message):
        self.message = message
        self.prompts, self.completions = message["prompts"], message["completions"]
        self.texts = [p if isinstance(p, str) else t for p, t in zip(self.prompts, message["texts"])]
        self.columns = message["columns"]
        self.count = len(self.completions)
        self.metrics, self.extra = {}, {}

    def as_messages(self):
        rows = zip(self.prompts, self.completions)
        return [c if isinstance(p, str) else [{"role": "assistant", "content": c}] for p, c in rows]

    def log_extra(self, column, values):
        values = [plain(value) for value in values]
        values = [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
        if len(values) != self.count:
            raise Mistake(f"log_extra('{column}') has {len(values)} values for {self.count} rows")
        self.extra[str(column)] = values

    def log_metric(self, name, value):
        value = plain(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Mistake(f"log_metric('{name}') has {value!r}, which is no finite number")
        self.metrics.setdefault(str(name), []).append(value)

    def labels(self, named):
        for name in [named] if named else LABELS:
            if name in self.columns:
                return self.columns[name]
        if named:
            raise KeyError(f"the data has no column '{named}'")
        return [None] * self.count


def plain(value):
    """numpy's and torch's values as Python's."""
    if isinstance(value, (str, bytes, int, float, bool, type(None), list, dict, tuple)):
        return value
    for convert in ("tolist", "item"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    return value


def reward_of(value, row):
    value = plain(value)
    if value is None:
        return None
    if isinstance(value, (bool, int, float)):
        number = float(value)
        if math.isfinite(number):
            return number
        raise Mistake(f"returned {number} for row {row}; a row that cannot be scored has None", row)
    raise Mistake(f"returned {str(value)[:80]!r} for row {row}, {kind(value)} and no number", row)


def rewards_of(values, rows):
    values = plain(values)
    if isinstance(values, (str, dict)) or not hasattr(values, "__len__"):
        raise Mistake(f"returned {kind(values)}, not a list of {rows.count} rewards")
    if len(values) != rows.count:
        raise Mistake(f"returned {len(values)} for {rows.count} rows")
    return [reward_of(value, row) for row, value in enumerate(values)]


def arguments_of(function, rows):
    completions = rows.completions if function.style == "swift" else rows.as_messages()
    arguments = {
        **rows.columns,
        "prompts": rows.prompts,
        "completions": completions,
        "completion_ids": rows.message["completion_ids"],
        "trainer_state": types.SimpleNamespace(**rows.message["trainer_state"]),
        "log_extra": rows.log_extra,
        "log_metric": rows.log_metric,
        **function.kwargs,
    }
    if function.takes_all:
        return arguments
    return {name: arguments[name] for name in function.parameters if name in arguments}


def verl_rows(function, rows):
    """(row, arguments) of verl's compute_score."""
    models = rows.columns.get("reward_model", [None] * rows.count)
    nested = [model.get("ground_truth") if isinstance(model, dict) else None for model in models]
    truths = (
        nested if not function.label and any(value is not None for value in nested) else rows.labels(function.label)
    )
    for row in range(rows.count):
        yield (
            row,
            {
                "data_source": rows.columns.get("data_source", [None] * rows.count)[row],
                "solution_str": rows.completions[row],
                "ground_truth": truths[row],
                "extra_info": rows.columns.get("extra_info", [None] * rows.count)[row],
                **function.kwargs,
            },
        )


def add_verl_row(rows, result, row):
    """The score of a number or a dictionary, whose other values become columns."""
    if not isinstance(result, dict):
        return result
    if "score" not in result:
        raise Mistake(f"returned no 'score' for row {row}", row)
    for name, value in result.items():
        if name != "score":
            rows.extra.setdefault(name, [None] * rows.count)[row] = plain(value)
    return result["score"]


def openrlhf_rewards(result, rows):
    if not isinstance(result, dict):
        return result
    if "rewards" not in result:
        raise Mistake("returned a dictionary without 'rewards'")
    for name, value in (result.get("extra_logs") or {}).items():
        value = plain(value)
        if isinstance(value, (list, tuple)) and len(value) == rows.count:
            rows.log_extra(name, value)
        elif isinstance(value, (int, float)):
            rows.log_metric(name, value)
    return result["rewards"]


async def scores_of(function, rows):
    async def called(*positional, **named):
        result = function.call(*positional, **named)
        if not inspect.isawaitable(result):
            return result
        return await result if function.is_async else event_loop().run_until_complete(result)

    if function.style == "verl":
        values = []
        for row, arguments in verl_rows(function, rows):
            try:
                values.append(add_verl_row(rows, await called(**arguments), row))
            except BaseException as error:
                error.reward_row = row
                raise
        return rewards_of(values, rows)
    if function.style == "openrlhf":
        queries = [text + completion for text, completion in zip(rows.texts, rows.completions)]
        result = await called(queries, rows.texts, rows.labels(function.label), **function.kwargs)
        return rewards_of(openrlhf_rewards(result, rows), rows)
    return rewards_of(await called(**arguments_of(function, rows)), rows)


def report(channel, message_id, number, error):
    row = getattr(error, "reward_row", getattr(error, "row", None))
    own = isinstance(error, Mistake)
    channel.write(
        {
            "type": "error",
            "id": message_id,
            "function": number,
            "kind": type(error).__name__,
            "message": str(error),
            "traceback": "" if own else users_frames(error),
            "row": row if isinstance(row, int) else None,
        }
    )


def users_frames(error):
    """The traceback without this script's frames."""
    entries = traceback.extract_tb(error.__traceback__)
    entries = [entry for entry in entries if entry.filename != "<string>" and "importlib" not in entry.filename]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(entries)] if entries else []
    return "".join([*lines, *traceback.format_exception_only(type(error), error)])[-20000:]


async def score_one(channel, function, number, message):
    rows, began = Rows(message), time.monotonic()
    try:
        rewards = await scores_of(function, rows)
        answer = encoded(
            {
                "type": "scores",
                "id": message["id"],
                "function": number,
                "rewards": rewards,
                "metrics": {name: sum(values) / len(values) for name, values in rows.metrics.items()},
                "extra": rows.extra,
                "seconds": time.monotonic() - began,
            }
        )
    except BaseException as error:
        report(channel, message["id"], number, error)
    else:
        channel.socket.sendall(answer)


def run_now(coroutine):
    """Where no function is async, nothing waits; without a running event loop a function may run its own."""
    try:
        coroutine.send(None)
    except StopIteration:
        pass


def score(channel, functions, message):
    waiting = []
    for number in message["functions"]:
        own = copy.deepcopy(message) if len(message["functions"]) > 1 else message  # a function may change it
        coroutine = score_one(channel, functions[number], number, own)
        if functions[number].is_async:
            waiting.append(coroutine)
        else:
            run_now(coroutine)
    if waiting:
        import asyncio

        async def together():
            await asyncio.gather(*waiting)

        event_loop().run_until_complete(together())


def load(channel, message):
    random.seed(message["seed"])
    functions, answers = {}, []
    for spec in message["functions"]:
        number = spec["id"]
        try:
            function = functions[number] = Function(spec)
        except BaseException as error:
            report(channel, 0, number, error)
            return None
        answers.append(
            {
                "id": number,
                "parameters": function.parameters,
                "required": function.columns_without_which_it_fails(),
                "kwargs": function.takes_all,
                "async": function.is_async,
            }
        )
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(message["seed"] % 2**32)
    channel.write({"type": "ready", "pid": os.getpid(), "python": sys.version.split()[0], "functions": answers})
    return functions


def main():
    sys.path.insert(0, os.getcwd())
    channel, functions = Channel(), {}
    while True:
        message = channel.read()
        if message is None or message["type"] == "quit":
            return
        if message["type"] == "load":
            functions = load(channel, message)
            if functions is None:
                return
        else:
            score(channel, functions, message)


main()
