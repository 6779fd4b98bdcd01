"""The build side: what runs on the user's machine, behind the tasks of ./inv."""
