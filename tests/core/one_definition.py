#!/usr/bin/env python3
"""Finds two definitions of one qualified name, and definitions that stand outside their module's namespace.

    one_definition.py ROOT          checks the tree; prints each pair, exit status 1 when there is one
    one_definition.py --self-test   checks that every rule is able to fail

Two types of one name in one program are undefined behaviour that no compiler and no linker reports: inline functions
and templates over them are merged, and one of the two lays out the other's objects. The rules:
  twice    no type, alias, variable, enumeration or function with a body has its qualified name in two files of one
           program: the product (include/, src/, kernels/), and the product with one folder of tests/. Two aliases of
           one name are no definitions; a compiler that sees both compares them
  home     what src/MODULE/ and include/unsloth/MODULE/ define lies in unsloth::MODULE, in a namespace within it, or in
           none that others can name; core, on which all stand, lies in unsloth itself
"""

import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}
NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|R"(?P<end>[^()\\\s]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'"
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
TOKEN = re.compile(r"\w+|::|->|\S")
TYPE_KEYS = {"class", "struct", "union", "enum"}
DECLARATION_WORDS = {
    "inline",
    "static",
    "constexpr",
    "constinit",
    "thread_local",
    "__global__",
    "__device__",
    "__host__",
}
ANONYMOUS, ALIAS = "(anonymous)", " ="
# These are opened by name from another library, or stand beside the module that they describe.
ENTRIES = {"src/app/main.cpp", "src/data/parquet/parquet.cpp"}


def tokens_of(text):
    """[(token, line)] without comments, preprocessor lines and what stands in quotes (which becomes one "")."""
    blank = NOT_CODE.sub(lambda m: ('""' if m[0][0] in "\"'R" else "") + "\n" * m[0].count("\n"), text)
    line, at, result = 1, 0, []
    for match in TOKEN.finditer(blank):
        line += blank.count("\n", at, match.start())
        at = match.start()
        result.append((match[0], line))
    return result


def behind(tokens, at, opening, closing):
    """The index behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i][0] == opening) - (tokens[i][0] == closing)
        if depth == 0:
            return i + 1
    return len(tokens)


def without_heads(words):
    """A declaration without template<...>, attributes and specifiers before it."""
    pairs = [(word, 0) for word in words]
    while pairs:
        if pairs[0][0] == "template" and len(pairs) > 1 and pairs[1][0] == "<":
            pairs = pairs[behind(pairs, 1, "<", ">") :]
        elif pairs[0][0] == "[":
            pairs = pairs[behind(pairs, 0, "[", "]") :]
        elif pairs[0][0] in DECLARATION_WORDS:
            pairs = pairs[1:]
        else:
            break
    return [word for word, _ in pairs]


def parameter_types(words):
    """The text between a function's parentheses without defaults and names of parameters."""
    result, current, depth = [], [], 0
    for word in [*words, ","]:
        depth += (word in "(<[{") - (word in ")>]}")
        if word == "," and depth == 0:
            current = current[: current.index("=")] if "=" in current else current
            named = len(current) > 1 and re.fullmatch(r"[a-z]\w*", current[-1]) and current[-2] != "::"
            result.append(" ".join(current[:-1] if named else current))
            current = []
        else:
            current.append(word)
    return ", ".join(result)


def defined_name(words, body):
    """What a declaration at namespace scope defines, or None; `body`: a { follows."""
    words = without_heads(words)
    if len(words) < 2 or words[0] in ("friend", "static_assert", "typedef", "extern", "operator", "namespace"):
        return None
    if words[0] == "using":
        return words[1] + ALIAS if len(words) > 2 and words[2] == "=" else None
    pairs = [(word, 0) for word in words]
    if words[0] in TYPE_KEYS:
        i = 2 if words[1] in ("class", "struct") else 1
        while i < len(words) and words[i] in ("__attribute__", "alignas"):
            i = behind(pairs, i + 1, "(", ")")
        if i >= len(words):
            return None
        end = behind(pairs, i + 1, "<", ">") if words[i + 1 : i + 2] == ["<"] else i + 1
        if end == len(words) or words[end] in (":", "final"):
            return "".join(words[i:end]) if body else None
    name, i = None, 0
    while i < len(words) and words[i] not in ("(", "=", "["):
        if words[i] == "operator":
            return None
        if words[i] == "<" and name is not None:
            i = behind(pairs, i, "<", ">")
            continue
        if re.fullmatch(r"\w+", words[i]):
            name = i
        i += 1
    if name is None or name == 0 or words[name - 1] == "::":
        return None
    if i < len(words) and words[i] == "(":
        if not body:
            return None
        return f"{words[name]}({parameter_types(words[i + 1 : behind(pairs, i, '(', ')') - 1])})"
    return words[name]


def definitions(text):
    """[(namespaces, name, line)] of what a file defines at namespace scope."""
    tokens, result, spaces, statement = tokens_of(text), [], [], []
    i = 0
    while i < len(tokens):
        token, line = tokens[i]
        if token == "}":
            if spaces:
                spaces.pop()
            statement = []
        elif (
            token == "{" and statement[:1] == ["namespace"] or token == "{" and statement[:2] == ["inline", "namespace"]
        ):
            names = [word for word in statement if word not in ("namespace", "inline", "::")]
            spaces.append(names or [ANONYMOUS])
            statement = []
        elif token == "(":
            end = behind(tokens, i, "(", ")")
            statement += [word for word, _ in tokens[i:end]]
            i = end
            continue
        elif token in ("{", ";"):
            name = defined_name(statement, token == "{")
            if name:
                result.append((tuple(part for space in spaces for part in space), name, line))
            i = behind(tokens, i, "{", "}") if token == "{" else i + 1
            # a member's initialisers and a type's declarators go on behind the braces
            goes_on = token == "{" and i < len(tokens) and tokens[i][0] in (",", "{")
            statement = ["friend"] if goes_on else []
            continue
        else:
            statement.append(token)
        i += 1
    return result


def module_of(path):
    """'data' for src/data/cache.cpp and include/unsloth/data/cache.h, 'tests/data' for tests/data/...; kernels as they are."""
    parts = path.parts
    if parts[0] == "include":
        return parts[2]
    return "/".join(parts[:2]) if parts[0] == "tests" else parts[1] if parts[0] == "src" else parts[0]


def check(root):
    """(lines about broken rules, number of definitions read)."""
    problems, count = [], 0
    product, of_tests = defaultdict(dict), defaultdict(lambda: defaultdict(dict))
    for folder in ("include", "src", "kernels", "tests"):
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root)
            if file.suffix not in SUFFIXES or not file.is_file() or len(path.parts) < 2:
                continue
            module = module_of(path)
            for spaces, name, line in definitions(file.read_text(encoding="utf-8")):
                count += 1
                if ANONYMOUS in spaces or name.startswith("TEST"):
                    continue
                place, alias = f"{path}:{line}", name.endswith(ALIAS)
                name = name.removesuffix(ALIAS)
                names = of_tests[module] if folder == "tests" else product
                names["::".join([*spaces, name])].setdefault(path, (place, alias))
                home = ["unsloth"] if module == "core" else ["unsloth", module]
                if (
                    folder in ("include", "src")
                    and path.as_posix() not in ENTRIES
                    and list(spaces[: len(home)]) != home
                ):
                    if not is_entry(spaces, name):
                        problems.append(f"{place}: home: {'::'.join([*spaces, name])} is not in {'::'.join(home)}")
    for names in (product, *of_tests.values()):
        for name, places in names.items():
            if name.startswith("main("):  # each executable has its own
                continue
            both = {**product.get(name, {}), **places}.values()
            if len(both) > 1 and not all(alias for _, alias in both):
                problems.append(f"twice: {name}: {', '.join(place for place, _ in both)}")
    return problems, count


def is_entry(spaces, name):
    """What belongs to another's namespace by its nature: C entries of libraries, specialisations of std's templates."""
    return not spaces or spaces[0] == "std" or name.startswith("UNSLOTH_")


def self_test():
    data, tests = "namespace unsloth::data {\n%s\n}\n", "namespace unsloth::data { namespace {\n%s\n} }\n"
    one, two = "src/data/a.cpp", "src/data/b.h"
    pairs = [
        ("struct Word { int a = 0; };", "struct Word final : Base { int b; };", True),
        ("struct Word { int a = 0; };", "struct Word;", False),
        ("struct Word { int a = 0; };", "namespace { struct Word { int b; }; }", False),
        ("struct Word { int a = 0; };", "namespace words { struct Word { int b; }; }", False),
        ("class alignas(8) Word { int a; };", "using Word = int;", True),
        ("using Word = long;", "using Word = int;", False),
        ("enum class Word { a, b };", "enum class Word : int { c };", True),
        ("template <class T> struct Word { T a; };", "template <> struct Word<int> { int a; };", False),
        ("template <class T> struct Word { T a; };", "template <typename U> struct Word { U b; };", True),
        ("inline int size(int a) { return a; }", "template <int N> int size(int b = 1) { return b + N; }", True),
        ("inline int size(int a) { return a; }", "inline int size(long a) { return 1; }", False),
        ("int size(int a) { return a; }", "int size(int a);", False),
        ("int size(int a) { return a; }", "int Word::size(int a) { return a; }", False),
        ("constexpr int limit = 3;", "inline constexpr int limit{4};", True),
        ("Word::Word() : a_{1}, b_{2} {}\nstruct Word { int c; };", "struct Word { int b; };", True),
        ('const char* text() { return "struct Word {"; } // struct Word {', "struct Word { int b; };", False),
        ("std::vector<int> limits(int a) { return {}; }", "bool limits() { return true; }", False),
    ]
    cases = [({one: data % a, two: data % b}, "twice" if found else None) for a, b, found in pairs]
    pair = "struct Word { int a; };"
    cases += [
        ({one: data % pair, "tests/data/a.cpp": data % pair}, "twice"),
        ({one: data % pair, "tests/data/a.cpp": tests % pair}, None),
        ({"tests/data/a.h": data % pair, "tests/formats/a.h": data % pair}, None),
        ({one: "namespace unsloth {\nstruct Word { int a; };\n}\n"}, "home"),
        ({one: "namespace unsloth::tokenizer {\nint words() { return 1; }\n}\n"}, "home"),
        ({one: "namespace unsloth { namespace {\nstruct Word { int a; };\n} }\n"}, None),
        ({"include/unsloth/core/a.h": "namespace unsloth::log {\nstruct Word { int a; };\n}\n"}, None),
        ({one: 'extern "C" int entry() { return 1; }\nnamespace unsloth::data { struct Word {}; }\n'}, None),
    ]
    failures = 0
    for files, rule in cases:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                file = Path(folder) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            problems, count = check(Path(folder))
        if not count or len(problems) != (rule is not None) or not all(f"{rule}: " in p for p in problems):
            print(f"self-test: {files}: expected {rule or 'no problem'}, found {problems or 'no problem'}")
            failures += 1
    print(f"self-test: {len(cases)} cases, {failures} failures")
    return failures


def main(arguments):
    if arguments == ["--self-test"]:
        return 1 if self_test() else 0
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    problems, count = check(Path(arguments[0]))
    print("\n".join([*problems, f"{count} definitions, {len(problems)} problems"]))
    return 1 if problems or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
