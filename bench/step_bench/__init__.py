"""Parts of ``bench/train_step.py``."""
