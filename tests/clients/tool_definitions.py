"""What the client tests ask for: a function, a custom tool and a model class."""

from typing import Any

from pydantic import BaseModel

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
SQL: Any = {
    "type": "custom",
    "name": "sql",
    "format": {"type": "grammar", "syntax": "regex", "definition": "SELECT [a-z]+"},
}


class Place(BaseModel):
    city: str
    people: int
