"""Metrics by their published definitions: entities, GLUE and SQuAD. Without torch."""
