"""A plausible call of a tool that the request insists on, so that relaying tool calls can be tested.

The engine does not understand tools: with ``tool_choice`` auto or none it answers in words. Where a call
is required it fills the declared properties with values of the declared types, chosen by the seed.
"""

import json

import attrs

from lunanexa_apps.engine.fields import Fields, Json
from lunanexa_apps.engine.sampling import Rng

_MAX_PROPERTIES = 16
_WORDS = ("harbour", "lantern", "river", "garden", "clock", "bread", "comet", "bridge")


@attrs.frozen
class Tool:
    name: str
    parameters: "dict[str, Json]"


def read_tool(fields: Fields) -> Tool | None:
    """The tool that has to be called, None where none has to be."""
    tools = _declared(fields)
    choice = fields.get("tool_choice")
    if choice is None or choice in ("none", "auto"):
        return None
    if not tools:
        fields.refuse("tool_choice", "needs a list of 'tools' to choose from.")
        return None
    if choice == "required":
        return tools[0]
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict):
        fields.refuse("tool_choice", "must be 'none', 'auto', 'required' or an object that names a function.")
        return None
    for tool in tools:
        if tool.name == function.get("name"):
            return tool
    fields.refuse("tool_choice", "names a function that 'tools' does not declare.")
    return None


def _declared(fields: Fields) -> list[Tool]:
    value = fields.get("tools")
    if value is None:
        return []
    if not isinstance(value, list):
        fields.refuse("tools", "must be a list.")
        return []
    tools: list[Tool] = []
    for index, item in enumerate(value):
        declared = Fields(item, f"tools[{index}].") if isinstance(item, dict) else None
        function = declared.object("function") if declared is not None else None
        if declared is None or function is None:
            fields.refuse(f"tools[{index}]", "must be an object with a 'function'.")
            continue
        parameters = function.get("parameters")
        tools.append(Tool(function.text("name"), parameters if isinstance(parameters, dict) else {}))
        fields.adopt(function)
    return tools


def arguments(tool: Tool, rng: Rng) -> str:
    properties = tool.parameters.get("properties")
    if not isinstance(properties, dict):
        return "{}"
    chosen = list(properties.items())[:_MAX_PROPERTIES]
    return json.dumps({name: _value(schema, rng) for name, schema in chosen}, ensure_ascii=False)


def _value(schema: "Json", rng: Rng) -> "Json":
    if not isinstance(schema, dict):
        return None
    listed = schema.get("enum")
    options = [option for option in listed if isinstance(option, str | int | float)] if isinstance(listed, list) else []
    if options:
        return options[rng.below(len(options))]
    match schema.get("type"):
        case "string":
            return _WORDS[rng.below(len(_WORDS))]
        case "integer":
            return rng.below(100)
        case "number":
            return rng.below(1000) / 10
        case "boolean":
            return rng.below(2) == 1
        case "array":
            return []
        case "object":
            return {}
        case _:
            return None
