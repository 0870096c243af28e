"""From a prompt and a cached reference to a picture: schedule, samplers, guidance, settings, pipeline."""
