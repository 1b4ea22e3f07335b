"""An adapter on disk: one file that verifies itself, written at once or not at all."""
