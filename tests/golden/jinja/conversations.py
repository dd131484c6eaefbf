"""Variables of the expressions, and conversations for the templates."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Current weather at a place, "as is".',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City & country"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": ["integer", "null"], "items": {"type": "number"}},
            },
            "required": ["place"],
        },
    },
}

VARIABLES = {
    "d": {"a": 1, "b": 2.5},
    "e": {"items": [1], "keys": 2},
    "l": [1, 2, 3, 4],
    "floats": [1.0, 1e5, 1e16, 1.5e-5, 0.0001, 123456789.123456789, 1e22, 1e-7, -2.5, 1e100, 9007199254740993.0],
    "s": "hello",
    "u": "naïve 日本 😀",
    "objects": [
        {"name": "Bob", "age": 42, "active": True, "nested": [1]},
        {"name": "alice", "age": 7, "active": False, "nested": [2]},
        {"name": "Zoe", "age": 30, "active": True, "nested": [3]},
    ],
    "tool": WEATHER,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi\nthere"},
        {"role": "assistant", "content": "Hello <b>you</b>"},
        {"role": "user", "content": "Bye né"},
    ],
    "bos_token": "<s>",
    "eos_token": "</s>",
}

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = {
    "id": "call_01",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": 2, "unit": None}},
}

CONVERSATIONS = [
    {**TOKENS, "messages": [message("user", "What is 2 + 2?"), message("assistant", "4")]},
    {
        **TOKENS,
        "messages": [
            message("system", " You are terse. "),
            message("user", "Hello\n\n"),
            message("assistant", "  Hi!  "),
            message("user", "日本語で? <|end|>"),
            message("assistant", "はい。\n"),
        ],
    },
    {
        **TOKENS,
        "messages": [
            message("user", "Think."),
            message("assistant", "<think>\nFirst.\n</think>\n\nDone."),
            message("user", "Again."),
            message("assistant", "Done again.", reasoning_content="Second."),
        ],
    },
    {
        **TOKENS,
        "tools": [WEATHER],
        "messages": [
            message("system", "Use tools."),
            message("user", "Weather in Zürich?"),
            message("assistant", "", tool_calls=[CALL]),
            message("tool", '{"temperature": 21.5, "sky": "☀"}', name="get_weather", tool_call_id="call_01"),
            message("assistant", "It is 21.5 °C."),
        ],
    },
    {
        **TOKENS,
        "messages": [
            message(
                "user", [{"type": "text", "text": "See"}, {"type": "image"}, {"type": "text", "text": "this & that"}]
            ),
            message("assistant", [{"type": "text", "text": "A cat."}]),
        ],
    },
    {
        **TOKENS,
        "messages": [message("user", "a"), message("user", "b")],
        "enable_thinking": False,
        "documents": [{"title": "One", "text": 'First "document"'}, {"title": "Two", "text": "Second"}],
    },
]
