"""`doctor`: what a rank would find in this container, each line ok, warning or error with its mend."""
