"""Everyday tools (weather, mail, files, search …) asked for in everyday words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.train_tiny.data import words
from tools.train_tiny.data.base import Source
from tools.train_tiny.data.schemas import DOMAINS, SUFFIXES, Function, Parameter

VALUES: dict[str, Callable[[Source], Any]] = {
    "city": lambda s: s.choice(words.CITIES),
    "to_city": lambda s: s.choice(words.CITIES),
    "unit": lambda s: s.choice(("celsius", "fahrenheit")),
    "query": lambda s: f"{s.choice(words.ADJECTIVES)} {s.choice(words.NOUNS)}",
    "email": lambda s: f"{s.choice(words.PEOPLE).lower()}@{s.choice(DOMAINS)}",
    "subject": lambda s: f"{s.choice(words.ADJECTIVES)} {s.choice(words.OBJECTS)}",
    "text": lambda s: f"{s.choice(words.VERBS)} the {s.choice(words.ADJECTIVES)} {s.choice(words.NOUNS)}",
    "path": lambda s: f"{s.choice(words.OBJECTS)}/{s.choice(words.NOUNS)}.{s.choice(SUFFIXES)}",
    "directory": lambda s: f"/{s.choice(words.OBJECTS)}/{s.choice(words.NOUNS)}",
    "command": lambda s: s.choice(("ls -la", "git status", "make test", "pytest -q", "df -h", "uname -a", "date")),
    "person": lambda s: s.choice(words.PEOPLE),
    "minutes": lambda s: s.integer(1, 90),
    "time": lambda s: f"{s.integer(0, 23):02d}:{s.choice(('00', '15', '30', '45'))}",
    "date": lambda s: f"20{s.integer(24, 29)}-{s.integer(1, 12):02d}-{s.integer(1, 28):02d}",
    "symbol": lambda s: "".join(s.choice("ABCDEFGHKLMNPRSTXYZ") for _ in range(s.integer(3, 4))),
    "amount": lambda s: s.integer(1, 900),
    "currency": lambda s: s.choice(("USD", "EUR", "GBP", "JPY", "CHF")),
    "to_currency": lambda s: s.choice(("SEK", "NOK", "INR", "CAD", "AUD")),
    "language": lambda s: s.choice(("French", "German", "Spanish", "Italian", "Polish", "Japanese")),
    "song": lambda s: f"{s.choice(words.ADJECTIVES)} {s.choice(words.NOUNS)}",
    "room": lambda s: s.choice(("kitchen", "bedroom", "bathroom", "office", "garage", "garden", "hall")),
    "id": lambda s: s.integer(1, 9999),
    "days": lambda s: s.integer(1, 14),
}
"""Value makers; the part of a placeholder after ``:`` in a recipe names one of these."""

INTEGERS = frozenset({"minutes", "amount", "id", "days"})
ENUMS: dict[str, tuple[str, ...]] = {"unit": ("celsius", "fahrenheit")}


@dataclass(frozen=True)
class Recipe:
    """One everyday tool: alternative names, what it does, parameter → value maker, and ways to ask for it.

    A request that leaves a parameter out leaves it out of the call.
    """

    names: tuple[str, ...]
    description: str
    parameters: dict[str, str]
    requests: tuple[str, ...]

    def function(self, source: Source, spelling: dict[str, str]) -> Function:
        """Returns the tool, its parameters renamed by ``spelling``."""
        items = []
        for name, maker in self.parameters.items():
            schema: dict[str, Any] = {"type": "integer" if maker in INTEGERS else "string"}
            if maker in ENUMS:
                schema["enum"] = list(ENUMS[maker])
            if source.chance(0.3):
                schema["description"] = f"The {spelling[name]}."
            items.append(Parameter(spelling[name], schema))
        always = [name for name in self.parameters if all("{" + name + "}" in text for text in self.requests)]
        required = tuple(spelling[name] for name in always)
        return Function(source.choice(self.names), self.description, tuple(items), required)


SPELLINGS: dict[str, tuple[str, ...]] = {
    "city": ("city", "location", "place"),
    "path": ("path", "file_path", "filename", "file"),
    "query": ("query", "q", "search"),
    "recipient": ("to", "recipient", "contact"),
    "command": ("command", "cmd"),
    "content": ("content", "text"),
    "message": ("message", "text", "body"),
    "unit": ("unit", "units"),
    "directory": ("directory", "path", "dir"),
}

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        ("get_weather", "get_current_weather", "weather"),
        "Get the current weather for a city.",
        {"city": "city", "unit": "unit"},
        (
            "What's the weather in {city}?",
            "What is the weather like in {city}?",
            "How is the weather in {city} today?",
            "Weather in {city}, please.",
            "Is it raining in {city}?",
            "What is the weather in {city} in {unit}?",
            "Tell me the temperature in {city} in {unit}.",
            "Use the tool to get the weather in {city}.",
        ),
    ),
    Recipe(
        ("get_forecast", "weather_forecast"),
        "Get the weather forecast for the next days.",
        {"city": "city", "days": "days"},
        (
            "Give me the forecast for {city} for {days} days.",
            "What will the weather be in {city} in the next {days} days?",
        ),
    ),
    Recipe(
        ("get_time", "get_current_time", "current_time"),
        "Get the current time in a city.",
        {"city": "city"},
        ("What time is it in {city}?", "Tell me the current time in {city}.", "Time in {city}?"),
    ),
    Recipe(
        ("search", "web_search", "search_web"),
        "Search the web.",
        {"query": "query"},
        (
            "Search for {query}.",
            "Search the web for {query}.",
            "Find information about {query}.",
            "Look up {query} online.",
        ),
    ),
    Recipe(
        ("send_email", "send_mail"),
        "Send an email.",
        {"recipient": "email", "subject": "subject", "body": "text"},
        (
            'Send an email to {recipient} with subject "{subject}" and body "{body}".',
            'Email {recipient}: subject "{subject}", text "{body}".',
        ),
    ),
    Recipe(
        ("send_message", "message_user"),
        "Send a message to a person.",
        {"recipient": "person", "message": "text"},
        (
            'Send {recipient} the message "{message}".',
            "Tell {recipient} to {message}.",
            'Message {recipient}: "{message}".',
        ),
    ),
    Recipe(
        ("read_file", "open_file", "read"),
        "Read a file.",
        {"path": "path"},
        (
            "Read {path}.",
            "Show me the file {path}.",
            "What is in {path}?",
            "Open the file {path}.",
            "Read the file {path}.",
        ),
    ),
    Recipe(
        ("write_file", "create_file", "write"),
        "Write text to a file.",
        {"path": "path", "content": "text"},
        ('Write "{content}" to {path}.', 'Create the file {path} with the content "{content}".'),
    ),
    Recipe(
        ("list_directory", "list_files", "ls"),
        "List the files of a directory.",
        {"directory": "directory"},
        ("List the files in {directory}.", "What files are in {directory}?", "Show the content of {directory}."),
    ),
    Recipe(
        ("run_command", "bash", "shell", "execute"),
        "Run a shell command.",
        {"command": "command"},
        (
            "Run {command}.",
            "Run the command {command}.",
            "Execute `{command}`.",
            "Please run `{command}` in the shell.",
        ),
    ),
    Recipe(
        ("set_timer", "start_timer"),
        "Start a timer.",
        {"minutes": "minutes"},
        ("Set a timer for {minutes} minutes.", "Start a {minutes} minute timer."),
    ),
    Recipe(
        ("set_alarm", "create_alarm"),
        "Set an alarm.",
        {"time": "time"},
        ("Wake me at {time}.", "Set an alarm for {time}."),
    ),
    Recipe(
        ("create_event", "add_event", "schedule_meeting"),
        "Create a calendar event.",
        {"title": "subject", "date": "date", "time": "time"},
        (
            'Create an event "{title}" on {date} at {time}.',
            'Add "{title}" to my calendar on {date}.',
            'Schedule "{title}" for {date} at {time}.',
        ),
    ),
    Recipe(
        ("get_stock_price", "stock_price"),
        "Get the price of a stock.",
        {"symbol": "symbol"},
        ("What is the stock price of {symbol}?", "How much is {symbol} stock?", "Get the price of {symbol}."),
    ),
    Recipe(
        ("convert_currency", "exchange"),
        "Convert money between currencies.",
        {"amount": "amount", "from": "currency", "to": "to_currency"},
        ("Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?"),
    ),
    Recipe(
        ("translate", "translate_text"),
        "Translate a text.",
        {"text": "text", "language": "language"},
        ('Translate "{text}" into {language}.', 'How do you say "{text}" in {language}?'),
    ),
    Recipe(
        ("play_music", "play_song"),
        "Play a song.",
        {"song": "song"},
        ("Play {song}.", 'Play the song "{song}".', "I want to hear {song}."),
    ),
    Recipe(
        ("turn_on_light", "light_on"),
        "Turn on the light in a room.",
        {"room": "room"},
        ("Turn on the light in the {room}.", "Light on in the {room}, please."),
    ),
    Recipe(
        ("book_flight", "find_flight"),
        "Book a flight.",
        {"from": "city", "to": "to_city", "date": "date"},
        ("Book a flight from {from} to {to} on {date}.", "I want to fly from {from} to {to} on {date}."),
    ),
    Recipe(
        ("get_user", "find_user", "get_order"),
        "Get a record by its number.",
        {"id": "id"},
        ("Get the record {id}.", "Show me number {id}.", "Fetch the entry with id {id}."),
    ),
    Recipe(("get_date", "today"), "Get the date of today.", {}, ("What is the date today?", "Which day is it today?")),
    Recipe(
        ("add_note", "save_note"),
        "Save a note.",
        {"text": "text"},
        ('Note: "{text}".', "Remind me to {text}.", 'Save the note "{text}".'),
    ),
)
