"""`entrypoint train`: fine-tunes a text classifier or an extractive question answerer on CPU ranks."""
