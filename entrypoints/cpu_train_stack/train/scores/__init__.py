"""Metrics by their published definitions: entities, GLUE, SQuAD and generated texts. Without torch."""
