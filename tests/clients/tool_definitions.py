"""Tool definitions and a model class shared by the client tests."""

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


class CityPopulation(BaseModel):
    city: str
    people: int
