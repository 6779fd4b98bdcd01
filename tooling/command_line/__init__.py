"""./inv's tasks by what they are about. What they do is done by the modules beside this package."""
