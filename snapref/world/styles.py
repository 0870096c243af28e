"""Four art styles: each changes the lines, the shading and the palette of the whole picture."""

from dataclasses import dataclass

from .palette import Colour, darker, mixed


@dataclass(frozen=True)
class Style:
    line_width: float  # figure units; 0 draws no outlines
    line: Colour | None  # outline colour; None: a darker tone of what it surrounds
    shade: float  # strength of the second tone; 0 draws flat
    gradients: bool  # skies blend, or are one tone
    chroma: float  # palette: chroma is multiplied,
    contrast: float  # lightness spread about 0.6,
    lift: float  # and raised
    paper: Colour = (0.95, 0.03, 85.0)  # the tint that everything is mixed with,
    tint: float = 0.0  # by this share
    halo: float = 0.0  # a soft light behind the figure
    drop: float = 0.0  # shapes are cut paper and throw a shadow this far

    def toned(self, colour: Colour) -> Colour:
        """The colour as this style prints it."""
        lightness, chroma, hue = colour
        lightness = min(max(0.6 + (lightness - 0.6) * self.contrast + self.lift, 0.03), 0.99)
        colour = (lightness, chroma * self.chroma, hue)
        return mixed(colour, self.paper, self.tint) if self.tint else colour

    def line_colour(self, colour: Colour) -> Colour:
        """The outline of a shape of `colour`, as printed."""
        if self.line is not None:
            return self.line
        return darker(self.toned(colour), 0.20)


STYLES = {
    "@flatline": Style(line_width=1.1, line=(0.26, 0.06, 285.0), shade=0.0, gradients=False,
                       chroma=1.12, contrast=1.0, lift=0.0),
    "@softglow": Style(line_width=1.0, line=None, shade=1.0, gradients=True,
                       chroma=0.90, contrast=0.84, lift=0.045, paper=(0.95, 0.06, 55.0), tint=0.08, halo=0.6),
    "@inkpress": Style(line_width=2.0, line=(0.12, 0.0, 0.0), shade=1.7, gradients=False,
                       chroma=0.66, contrast=1.12, lift=-0.01, paper=(0.90, 0.06, 85.0), tint=0.14),
    "@pastelcut": Style(line_width=1.7, line=(0.995, 0.0, 0.0), shade=0.0, gradients=False,
                        chroma=0.80, contrast=0.80, lift=0.04, drop=1.1),
}
