"""The base model, to be read in this order: rope, attention, lowrank, block, model, text, vae."""
