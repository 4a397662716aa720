"""Longrein: train language models inside the agents people really run."""
