"""A prompt that can be typed, and drop-downs for the scene that write it."""

from collections.abc import Callable

import ipywidgets as widgets

from snapref.world.prompts import parse, split_prompt
from snapref.world.vocabulary import SCENE

ATTRIBUTES = ("background", "pose", "expression", "framing")  # of a scene; the drop-downs, in this order
UNSAID = "(not said)"


def with_tag(prompt: str, attribute: str, tag: str | None) -> str:
    """Returns the prompt with `tag` in place of what it says of that attribute; None takes it out.

    The tag stands where the old one stood, else at the end. Everything else stays as it was typed.
    """
    parts, pending = [], tag
    for part in filter(None, map(str.strip, prompt.split(","))):
        if attribute not in parse(part):
            parts.append(part)
        elif pending:
            parts.append(pending)
            pending = None
    return ", ".join([*parts, pending] if pending else parts)


def scene_only(prompt: str) -> str:
    """Returns the prompt without any tag that says how the character looks."""
    kept = [tag for tag in split_prompt(prompt) if set(parse(tag)) <= {"count", *SCENE}]
    return ", ".join(kept)


class PromptBox:
    """A text field and the scene's drop-downs, each following the other. `on_change` runs once per change."""

    def __init__(self, prompt: str, on_change: Callable[[], None]):
        self.on_change = on_change
        self.text = widgets.Text(
            value=prompt, description="prompt", continuous_update=False, layout=widgets.Layout(width="98%")
        ).add_class("snapref-prompt")
        self.choices = {name: self.drop_down(name) for name in ATTRIBUTES}
        self.following = False  # whether the drop-downs are being set from the text
        self.follow()
        self.text.observe(self.typed, "value")
        for choice in self.choices.values():
            choice.observe(self.chosen, "value")
        self.widget = widgets.VBox([self.text, widgets.HBox([*self.choices.values()])])

    @property
    def prompt(self) -> str:
        return self.text.value

    def drop_down(self, attribute: str) -> widgets.Dropdown:
        options = [(UNSAID, ""), *((tag, tag) for tag in SCENE[attribute])]
        return widgets.Dropdown(
            options=options, description=attribute, layout=widgets.Layout(width="25%", min_width="150px"),
            style={"description_width": "86px"},
        ).add_class(f"snapref-{attribute}")  # fmt: skip

    def follow(self) -> None:
        """Show in the drop-downs what the text says."""
        said = parse(self.text.value)
        self.following = True
        for name, choice in self.choices.items():
            choice.value = said.get(name, "")
        self.following = False

    def typed(self, change) -> None:
        self.follow()
        self.on_change()

    def chosen(self, change) -> None:
        if self.following:
            return
        attribute = next(name for name, choice in self.choices.items() if choice is change["owner"])
        self.text.value = with_tag(self.text.value, attribute, change["new"] or None)
