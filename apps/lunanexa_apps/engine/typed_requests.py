"""Requests of the dialects responses and messages, read like those of chat.

Source: https://platform.openai.com/docs/api-reference/responses/create and
https://docs.anthropic.com/en/api/messages
"""

from lunanexa_apps.engine.fields import Fields, Json
from lunanexa_apps.engine.requests import (
    LIMIT_MAX,
    Form,
    Read,
    TextRequest,
    read_conversation,
    read_options,
    read_text,
)

_PARTS = ("input_text", "output_text", "text")
_FREE_CHOICES = (None, "auto", "none")


def read_response(values: "dict[str, Json]") -> Read:
    fields = Fields(values)
    options = read_options(fields)
    instructions = fields.text("instructions", "")
    given = fields.get("input")
    if isinstance(given, str):
        opening = f"system: {instructions}\n" if instructions else ""
        prompt, echoed = f"{opening}user: {given}\nassistant:", given
    else:
        prompt, echoed = read_conversation(fields, "input", _PARTS, instructions)
    limit = fields.integer("max_output_tokens", 1, LIMIT_MAX)
    fields.unsupported("previous_response_id", "conversation", "background", "prompt")
    if fields.get("tool_choice") not in _FREE_CHOICES:
        fields.refuse("tool_choice", "must be 'auto' or 'none': no tool is called here.", "unsupported_parameter")
    shape = fields.object("text")
    form = None if shape is None else shape.get("format")
    if isinstance(form, dict) and form.get("type") != "text":
        fields.refuse("text.format", "must be of type 'text'.", "unsupported_parameter")
    if fields.fault is not None:
        return fields.fault
    return TextRequest(
        options=options,
        form=Form.RESPONSE,
        field="input",
        limit_field="max_output_tokens",
        prompt=prompt,
        echoed=echoed,
        max_tokens=limit,
    )


def read_message(values: "dict[str, Json]") -> Read:
    fields = Fields(values)
    options = read_options(fields, "stop_sequences")
    system = "" if fields.get("system") is None else read_text(fields, "system", _PARTS)
    prompt, echoed = read_conversation(fields, "messages", _PARTS, system)
    limit = fields.integer("max_tokens", 1, LIMIT_MAX)
    if limit is None:
        fields.refuse("max_tokens", "is required.")
    choice = fields.object("tool_choice")
    if choice is not None and choice.get("type") not in _FREE_CHOICES:
        fields.refuse("tool_choice", "must be of type 'auto' or 'none': no tool is called here.")
    if fields.fault is not None:
        return fields.fault
    return TextRequest(
        options=options, form=Form.MESSAGE, field="messages", prompt=prompt, echoed=echoed, max_tokens=limit
    )
