"""How every part of nano is made: codec, text model, base, tagger, adapter. One loop, five tasks."""
