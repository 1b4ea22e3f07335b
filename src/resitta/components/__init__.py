"""The parts methods are made of: the paper's ResiBN, EntroBank and self-training, and what several methods share."""
